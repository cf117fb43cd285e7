//! Finds what checks need in an answer's text, and in the metadata of its sample.

use regex::{Regex, RegexBuilder};
use serde::Deserialize;
use serde_json::Value;

use super::CheckError;

/// The most bytes of a compiled expression, or of the cache of its search.
const SIZE_LIMIT: usize = 1 << 20;
const NEST_LIMIT: u32 = 64;

/// Compiles `pattern` within limits, or returns the reason why it can't.
pub(super) fn compile(pattern: &str, ignore_case: bool) -> Result<Regex, String> {
    RegexBuilder::new(pattern)
        .case_insensitive(ignore_case)
        .size_limit(SIZE_LIMIT)
        .dfa_size_limit(SIZE_LIMIT)
        .nest_limit(NEST_LIMIT)
        .build()
        .map_err(|error| format!("is no usable regular expression ({error})"))
}

/// The setting `extract` of a check: a regular expression that finds the answer in a longer text. Default: none.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(try_from = "Option<String>")]
pub(super) struct Extract(Option<Regex>);

impl TryFrom<Option<String>> for Extract {
    type Error = CheckError;

    fn try_from(pattern: Option<String>) -> Result<Self, CheckError> {
        let compiled = pattern.map(|pattern| compile(&pattern, false)).transpose();
        compiled.map(Self).map_err(|problem| CheckError::Setting {
            name: "extract",
            problem,
        })
    }
}

impl Extract {
    /// Returns whether there is an expression.
    pub(super) fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the first group of the last match, or the match itself if the expression has no group: models come to
    /// their answer at the end. Without an expression, returns the whole text.
    pub(super) fn find<'a>(&self, text: &'a str) -> Option<&'a str> {
        let Some(regex) = &self.0 else {
            return Some(text);
        };
        let captures = regex.captures_iter(text).last()?;
        let group = usize::from(regex.captures_len() > 1);
        captures.get(group).map(|found| found.as_str())
    }
}

/// Returns the content of the last complete `\boxed{}` or `\fbox{}` in one pass, however many boxes stay open.
pub(super) fn last_boxed(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    // For each open brace, the start of its content; none for braces that belong to no box.
    let mut open: Vec<Option<usize>> = Vec::new();
    let mut last: Option<(usize, usize)> = None;
    let mut is_escaped = false;
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'{' => {
                let before = text.get(..at).map_or("", str::trim_end);
                let is_box = before.ends_with("\\boxed") || before.ends_with("\\fbox");
                open.push(is_box.then_some(at + 1));
            }
            b'}' => {
                if let Some(Some(start)) = open.pop()
                    && last.is_none_or(|(other, _)| other < start)
                {
                    last = Some((start, at));
                }
            }
            _ => {}
        }
    }
    let (start, end) = last?;
    text.get(start..end)
}

/// Returns the content of the last fence that is labelled `label`, else of the last fence, else the whole text, without the
/// white space around it. A fence that does not end does not count.
pub(super) fn last_fenced<'a>(text: &'a str, label: &str) -> &'a str {
    let mut labelled = None;
    let mut any = None;
    let mut open: Option<(usize, bool)> = None;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let start = at;
        at += line.len();
        let Some(info) = line.trim().strip_prefix("```") else {
            continue;
        };
        match open.take() {
            Some((begin, is_labelled)) => {
                let content = text.get(begin..start);
                any = content;
                if is_labelled {
                    labelled = content;
                }
            }
            None => {
                let word = info.split_whitespace().next().unwrap_or_default();
                open = Some((at, word.eq_ignore_ascii_case(label)));
            }
        }
    }
    labelled.or(any).unwrap_or(text).trim()
}

/// The names of the field with the expected answer, the first one first. A check may name another field.
const ANSWERS: [&str; 4] = ["expected_answer", "answer", "target", "ground_truth"];

/// The setting of a check that names the field with the expected answer.
pub(super) const EXPECTED_FIELD: &str = "expected_field";

/// Returns the default of the setting `expected_field`, which stands for all usual names.
pub(in crate::environment) fn default_field() -> String {
    ANSWERS[0].to_owned()
}

/// Returns a field of the sample's metadata that is not null, and its name. `setting` is the setting that gave `name`.
pub(super) fn field<'a>(
    metadata: &'a Value,
    name: &'a str,
    setting: &'static str,
) -> Result<(&'a str, &'a Value), CheckError> {
    let names = if name == ANSWERS[0] {
        ANSWERS.as_slice()
    } else {
        std::slice::from_ref(&name)
    };
    let known = names.iter().filter_map(|name| {
        let value = metadata.get(name).filter(|value| !value.is_null())?;
        Some((*name, value))
    });
    known.into_iter().next().ok_or_else(|| {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        CheckError::Missing {
            fields: names.join(", "),
            setting,
        }
    })
}

/// Returns the expected texts and the name of their field: a list has several; numbers and booleans are spelled as in
/// JSON.
pub(in crate::environment) fn expected_texts<'a>(
    metadata: &'a Value,
    name: &'a str,
) -> Result<(&'a str, Vec<String>), CheckError> {
    let (name, value) = field(metadata, name, EXPECTED_FIELD)?;
    let list = match value {
        Value::Array(list) if list.is_empty() => {
            return Err(unusable(name, "is an empty list"));
        }
        Value::Array(list) => list.as_slice(),
        _ => std::slice::from_ref(value),
    };
    let texts = list
        .iter()
        .map(|value| match value {
            Value::String(text) => Ok(text.clone()),
            Value::Number(_) | Value::Bool(_) => Ok(value.to_string()),
            _ => Err(unusable(
                name,
                "is neither a text nor a number, nor a list of those",
            )),
        })
        .collect::<Result<_, _>>()?;
    Ok((name, texts))
}

pub(super) fn unusable(field: &str, problem: impl Into<String>) -> CheckError {
    CheckError::Unusable {
        field: field.to_owned(),
        problem: problem.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Extract {
        pub(in crate::environment) fn of(pattern: &str) -> Self {
            Self::try_from(Some(pattern.to_owned())).unwrap()
        }
    }

    #[test]
    fn the_last_complete_box_counts() {
        for (text, expected) in [
            (r"\boxed{1}", Some("1")),
            (r"\boxed{1} and \boxed{\frac{1}{2}}.", Some(r"\frac{1}{2}")),
            (r"\fbox {a}", Some("a")),
            (r"\boxed{1} then \boxed{2", Some("1")),
            (r"\boxed{\{1\}}", Some(r"\{1\}")),
            (r"a } \boxed{}", Some("")),
            (r"\boxed 5", None),
            ("{5}", None),
            ("", None),
        ] {
            assert_eq!(last_boxed(text), expected, "{text}");
        }
    }

    #[test]
    fn many_open_boxes_take_no_longer_than_their_text() {
        let text = format!(r"\boxed{{7}}{}", r"\boxed{".repeat(100_000));
        assert_eq!(last_boxed(&text), Some("7"));
    }

    #[test]
    fn the_last_labelled_fence_goes_first() {
        for (text, expected) in [
            (" {} ", "{}"),
            ("a\n```json\n1\n```\nb\n```json\n2\n```", "2"),
            ("```JSON title\n1\n```\n```python\nx\n```", "1"),
            ("```\n1\n```\n", "1"),
            ("  ```json\r\n1\r\n  ```\r\n", "1"),
            ("```json\n1", "```json\n1"),
            ("```json\n1\n```\n```json\n2", "1"),
        ] {
            assert_eq!(last_fenced(text, "json"), expected, "{text:?}");
        }
    }
}
