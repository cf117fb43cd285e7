use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use super::answer_text::{Extract, compile, field, unusable};
use super::{Check, CheckError, Judgement};

const DEFAULT_FIELD: &str = "pattern";

/// The answer matches a regular expression, of the configuration or of the sample.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RegularExpression {
    /// The expression, if it is the same for all samples.
    pattern: Option<String>,
    /// The field of the sample's metadata that has the expression. Default: `pattern`.
    pattern_field: Option<String>,
    /// Whether the whole answer has to match, not just a part of it. Default: no.
    whole: bool,
    /// A regular expression whose last match is the answer: its first group if it has one. Default: the whole text.
    extract: Extract,
    /// Whether to ignore white space around the answer. Default: yes.
    trim: bool,
    /// Whether to ignore case. Default: no.
    ignore_case: bool,
    /// [`Self::pattern`], compiled.
    #[serde(skip)]
    compiled: Option<Regex>,
}

impl Default for RegularExpression {
    fn default() -> Self {
        Self {
            pattern: None,
            pattern_field: None,
            whole: false,
            extract: Extract::default(),
            trim: true,
            ignore_case: false,
            compiled: None,
        }
    }
}

impl RegularExpression {
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

impl Check for RegularExpression {
    fn prepare(&mut self) -> Result<(), CheckError> {
        let setting = |problem: String| CheckError::Setting {
            name: "pattern",
            problem,
        };
        if self.pattern.is_some() && self.pattern_field.is_some() {
            return Err(setting("is set, and so is `pattern_field`".to_owned()));
        }
        let pattern = self.pattern.as_deref();
        let compiled = pattern.map(|pattern| self.compile(pattern)).transpose();
        self.compiled = compiled.map_err(setting)?;
        Ok(())
    }

    fn judge(&self, text: &str, metadata: &Value) -> Result<Judgement, CheckError> {
        let own;
        let pattern = match &self.compiled {
            Some(pattern) => pattern,
            None => {
                let name = self.pattern_field.as_deref().unwrap_or(DEFAULT_FIELD);
                let (_, value) = field(metadata, name, "pattern_field")?;
                let text = value
                    .as_str()
                    .ok_or_else(|| unusable(name, "is not the text of a regular expression"))?;
                let compiled = self.compile(text);
                own = compiled.map_err(|problem| unusable(name, problem))?;
                &own
            }
        };
        let Some(answer) = self.extract.find(text) else {
            return Ok(Judgement::default());
        };
        let answer = if self.trim { answer.trim() } else { answer };
        let found = pattern.find(answer);
        let shown = if self.extract.is_set() {
            Some(answer)
        } else {
            found.map(|found| found.as_str())
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
            extract: Extract::of("=(.*)"),
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
            let judged = check.judge(text, &json!({"pattern": pattern})).unwrap();
            assert_eq!(
                (judged.is_right, judged.answer.as_deref()),
                (is_right, answer),
                "{text} {pattern}"
            );
        }
    }

    #[test]
    fn a_fixed_pattern_needs_no_field() {
        let mut check = RegularExpression {
            pattern: Some("^a".to_owned()),
            ..RegularExpression::default()
        };
        check.prepare().unwrap();
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
