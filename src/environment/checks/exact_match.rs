use serde::Deserialize;
use serde_json::Value;

use super::answer_text::{Extract, default_field, expected_texts};
use super::{Check, CheckError, Judgement};

/// The answer is the expected text, or one of a list of them.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ExactMatch {
    /// The field of the sample's metadata that has the expected text.
    expected_field: String,
    /// A regular expression whose last match is the answer: its first group if it has one. Default: the whole text.
    extract: Extract,
    /// Whether to ignore white space around both texts. Default: yes.
    trim: bool,
    /// Whether to ignore case. Default: no.
    ignore_case: bool,
}

impl Default for ExactMatch {
    fn default() -> Self {
        Self {
            expected_field: default_field(),
            extract: Extract::default(),
            trim: true,
            ignore_case: false,
        }
    }
}

impl ExactMatch {
    fn normal(&self, text: &str) -> String {
        let text = if self.trim { text.trim() } else { text };
        if self.ignore_case {
            text.to_lowercase()
        } else {
            text.to_owned()
        }
    }
}

impl Check for ExactMatch {
    fn judge(&self, text: &str, metadata: &Value) -> Result<Judgement, CheckError> {
        let (_, expected) = expected_texts(metadata, &self.expected_field)?;
        let Some(answer) = self.extract.find(text) else {
            return Ok(Judgement::default());
        };
        let answer = if self.trim { answer.trim() } else { answer };
        let normal = self.normal(answer);
        Ok(Judgement {
            is_right: expected
                .iter()
                .any(|expected| self.normal(expected) == normal),
            answer: Some(answer.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_are_compared_as_set() {
        let plain = ExactMatch::default();
        let strict = ExactMatch {
            trim: false,
            ..plain.clone()
        };
        let loose = ExactMatch {
            ignore_case: true,
            ..plain.clone()
        };
        let found = ExactMatch {
            extract: Extract::of("(?i)answer: *(.*)"),
            ..plain.clone()
        };
        let whole = ExactMatch {
            extract: Extract::of("[0-9]+"),
            ..plain.clone()
        };
        for (check, text, expected, is_right, answer) in [
            (&plain, " Paris\n", json!("Paris"), true, Some("Paris")),
            (&plain, "paris", json!("Paris"), false, Some("paris")),
            (&plain, "7", json!(7), true, Some("7")),
            (&plain, "true", json!(true), true, Some("true")),
            (&plain, "b", json!(["a", "b"]), true, Some("b")),
            (&strict, "a ", json!("a"), false, Some("a ")),
            (&loose, "STRAẞE", json!("straße"), true, Some("STRAẞE")),
            (
                &found,
                "Answer: 1\nno, answer: 2 ",
                json!("2"),
                true,
                Some("2"),
            ),
            (&found, "none", json!("none"), false, None),
            (&whole, "1 or 22", json!("22"), true, Some("22")),
        ] {
            let judged = check
                .judge(text, &json!({"expected_answer": expected}))
                .unwrap();
            assert_eq!(
                (judged.is_right, judged.answer.as_deref()),
                (is_right, answer),
                "{text}"
            );
        }
    }

    #[test]
    fn unusable_expectations_name_their_field() {
        let check = ExactMatch {
            expected_field: "truth".to_owned(),
            ..ExactMatch::default()
        };
        for value in [json!({}), json!([]), json!([null])] {
            let error = check.judge("a", &json!({"truth": value})).unwrap_err();
            assert!(
                matches!(&error, CheckError::Unusable { field, .. } if field == "truth"),
                "{error}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_text_is_itself_whatever_is_set(text in any::<String>(), trim: bool, ignore_case: bool) {
            let check = ExactMatch { trim, ignore_case, ..ExactMatch::default() };
            let judged = check.judge(&text, &json!({"expected_answer": text})).unwrap();
            prop_assert!(judged.is_right);
        }
    }
}
