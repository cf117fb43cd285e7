//! [`RegularExpression`].

use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::answer_regex::{compile, compile_extract, extract};
use super::expected::{field, unusable};
use super::{CheckError, Judgement};

const DEFAULT_FIELD: &str = "pattern";

/// The answer matches a regular expression, of the configuration or of the sample.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RegularExpression {
    /// The expression, where it is the same for all samples.
    pub pattern: Option<String>,
    /// The field of the sample's metadata that has the expression. Default: `pattern`.
    pub pattern_field: Option<String>,
    /// Whether the whole answer has to match, not just a part of it. Default: no.
    pub whole: bool,
    /// A regular expression whose last match is the answer: its first group if it has one. Default: the whole text.
    pub extract: Option<String>,
    /// Whether white space around the answer does not count. Default: yes.
    pub trim: bool,
    /// Whether case does not count. Default: no.
    pub ignore_case: bool,
}

impl Default for RegularExpression {
    fn default() -> Self {
        Self {
            pattern: None,
            pattern_field: None,
            whole: false,
            extract: None,
            trim: true,
            ignore_case: false,
        }
    }
}

#[derive(Debug)]
pub(super) struct PreparedRegularExpression {
    check: RegularExpression,
    pattern: Option<Regex>,
    extract: Option<Regex>,
}

impl RegularExpression {
    pub(super) fn prepare(self) -> Result<PreparedRegularExpression, CheckError> {
        let setting = |problem: String| CheckError::Setting {
            name: "pattern",
            problem,
        };
        if self.pattern.is_some() && self.pattern_field.is_some() {
            return Err(setting("is set, and so is `pattern_field`".to_owned()));
        }
        let pattern = self
            .pattern
            .as_deref()
            .map(|pattern| self.compile(pattern).map_err(setting))
            .transpose()?;
        let extract = compile_extract(self.extract.as_deref())?;
        Ok(PreparedRegularExpression {
            check: self,
            pattern,
            extract,
        })
    }

    fn compile(&self, pattern: &str) -> Result<Regex, String> {
        let regex = compile(pattern, self.ignore_case)?;
        if !self.whole {
            return Ok(regex);
        }
        // The line break ends a comment, which `(?x)` allows; elsewhere it would be a character to match.
        compile(&format!(r"\A(?:{pattern})\z"), self.ignore_case)
            .or_else(|_| compile(&format!("\\A(?:{pattern}\n)\\z"), self.ignore_case))
    }
}

impl PreparedRegularExpression {
    pub(super) fn judge(&self, text: &str, metadata: &Value) -> Result<Judgement, CheckError> {
        let own;
        let pattern = match &self.pattern {
            Some(pattern) => pattern,
            None => {
                let name = self.check.pattern_field.as_deref().unwrap_or(DEFAULT_FIELD);
                let text = field(metadata, name)?
                    .as_str()
                    .ok_or_else(|| unusable(name, "is not the text of a regular expression"))?;
                own = self
                    .check
                    .compile(text)
                    .map_err(|problem| unusable(name, problem))?;
                &own
            }
        };
        let Some(answer) = extract(self.extract.as_ref(), text) else {
            return Ok(Judgement::none());
        };
        let answer = if self.check.trim {
            answer.trim()
        } else {
            answer
        };
        let found = pattern.find(answer);
        let shown = match (&self.extract, found) {
            (None, Some(found)) => Some(found.as_str()),
            (None, None) => None,
            (Some(_), _) => Some(answer),
        };
        Ok(Judgement {
            is_right: found.is_some(),
            answer: shown.map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn answers_match_in_part_or_as_a_whole() {
        let part = RegularExpression::default();
        let whole = RegularExpression {
            whole: true,
            ..part.clone()
        };
        let loose = RegularExpression {
            ignore_case: true,
            ..part.clone()
        };
        let exact = RegularExpression {
            trim: false,
            ..whole.clone()
        };
        let found = RegularExpression {
            extract: Some("=(.*)".to_owned()),
            ..whole.clone()
        };
        for (check, text, pattern, is_right, answer) in [
            (&part, "xaay", "a+", true, Some("aa")),
            (&part, "b", "a", false, None),
            (&part, "A", "a", false, None),
            (&loose, "A", "a", true, Some("A")),
            (&whole, " ab ", "a|ab", true, Some("ab")),
            (&whole, "xab", "a|ab", false, None),
            (&whole, "ab", "(?x) a b # both", true, Some("ab")),
            (&exact, " ab", "ab", false, None),
            (&found, "x=1", "[0-9]", true, Some("1")),
            (&found, "x=a", "[0-9]", false, Some("a")),
            (&found, "1", "[0-9]", false, None),
        ] {
            let judged = check
                .clone()
                .prepare()
                .unwrap()
                .judge(text, &json!({"pattern": pattern}))
                .unwrap();
            assert_eq!(
                (judged.is_right, judged.answer.as_deref()),
                (is_right, answer),
                "{text} {pattern}"
            );
        }
    }

    #[test]
    fn a_fixed_pattern_needs_no_field() {
        let check = RegularExpression {
            pattern: Some("^a".to_owned()),
            ..RegularExpression::default()
        };
        let check = check.prepare().unwrap();
        assert!(check.judge("ab", &Value::Null).unwrap().is_right);
        assert!(
            !check
                .judge("ba", &json!({"pattern": "b"}))
                .unwrap()
                .is_right
        );
    }

    #[test]
    fn patterns_of_samples_that_do_not_compile_name_their_field() {
        let check = RegularExpression {
            pattern_field: Some("p".to_owned()),
            ..RegularExpression::default()
        };
        let check = check.prepare().unwrap();
        let nested = format!("{}a{}", "(".repeat(100_000), ")".repeat(100_000));
        for pattern in [
            json!("("),
            json!(1),
            json!("(a{1000}){1000}"),
            json!(nested),
            json!("(?=a)"),
        ] {
            let error = check.judge("a", &json!({"p": pattern})).unwrap_err();
            assert!(matches!(&error, CheckError::Unusable { field, .. } if field == "p"));
        }
    }
}
