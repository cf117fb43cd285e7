//! [`Check`], [`PreparedCheck`] and [`Judgement`].

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::exact_match::PreparedExactMatch;
use super::json_schema::PreparedJsonSchema;
use super::multiple_choice::PreparedMultipleChoice;
use super::numeric::PreparedNumeric;
use super::regular_expression::PreparedRegularExpression;
use super::{CheckError, ExactMatch, JsonSchema, MultipleChoice, Numeric, RegularExpression};

/// A check as the configuration spells it: `kind` and the settings of that kind, all of which have defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Check {
    /// The answer is the expected text.
    ExactMatch(ExactMatch),
    /// The answer's final number is the expected one.
    Numeric(Numeric),
    /// The answer chooses the expected letter.
    MultipleChoice(MultipleChoice),
    /// The answer matches a regular expression.
    RegularExpression(RegularExpression),
    /// The answer is JSON that fits a schema.
    JsonSchema(JsonSchema),
}

/// What a check says of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// Whether the answer is right.
    pub is_right: bool,
    /// What was judged of the answer's text; none where nothing in it could be an answer.
    pub answer: Option<String>,
}

impl Judgement {
    pub(super) fn none() -> Self {
        Self {
            is_right: false,
            answer: None,
        }
    }
}

/// A [`Check`] with everything compiled that is the same for all samples.
#[derive(Debug)]
pub struct PreparedCheck(Prepared);

#[derive(Debug)]
enum Prepared {
    ExactMatch(PreparedExactMatch),
    Numeric(PreparedNumeric),
    MultipleChoice(PreparedMultipleChoice),
    RegularExpression(PreparedRegularExpression),
    JsonSchema(PreparedJsonSchema),
}

impl Check {
    /// Compiles what does not depend on the sample.
    ///
    /// # Errors
    /// [`CheckError::Setting`] for settings that contradict each other or do not compile.
    pub fn prepare(self) -> Result<PreparedCheck, CheckError> {
        Ok(PreparedCheck(match self {
            Self::ExactMatch(check) => Prepared::ExactMatch(check.prepare()?),
            Self::Numeric(check) => Prepared::Numeric(check.prepare()?),
            Self::MultipleChoice(check) => Prepared::MultipleChoice(check.prepare()?),
            Self::RegularExpression(check) => Prepared::RegularExpression(check.prepare()?),
            Self::JsonSchema(check) => Prepared::JsonSchema(check.prepare()?),
        }))
    }
}

impl PreparedCheck {
    /// Judges the text of an answer by its sample's metadata, NeMo RL's `extra_env_info`.
    ///
    /// # Errors
    /// [`CheckError::Missing`] and [`CheckError::Unusable`] name the field of the metadata that has no usable expected
    /// value; [`CheckError::TooCostly`] where an answer nests too deep for a schema.
    pub fn judge(&self, answer_text: &str, metadata: &Value) -> Result<Judgement, CheckError> {
        match &self.0 {
            Prepared::ExactMatch(check) => check.judge(answer_text, metadata),
            Prepared::Numeric(check) => check.judge(answer_text, metadata),
            Prepared::MultipleChoice(check) => check.judge(answer_text, metadata),
            Prepared::RegularExpression(check) => check.judge(answer_text, metadata),
            Prepared::JsonSchema(check) => check.judge(answer_text, metadata),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_settings_have_defaults() {
        for (kind, metadata, right, wrong) in [
            (
                "exact-match",
                json!({"expected_answer": "a b"}),
                " a b\n",
                "a  b",
            ),
            (
                "numeric",
                json!({"expected_answer": 42}),
                "so 42.",
                "so 41.",
            ),
            (
                "multiple-choice",
                json!({"expected_answer": "B"}),
                "The answer is (B).",
                "The answer is (C).",
            ),
            ("regular-expression", json!({"pattern": "b+"}), "abba", "a"),
            (
                "json-schema",
                json!({"schema": {"type": "object"}}),
                "{}",
                "[]",
            ),
        ] {
            let check: Check = serde_json::from_value(json!({"kind": kind})).unwrap();
            assert_eq!(serde_json::to_value(&check).unwrap()["kind"], kind);
            let check = check.prepare().unwrap();
            assert!(check.judge(right, &metadata).unwrap().is_right, "{kind}");
            assert!(!check.judge(wrong, &metadata).unwrap().is_right, "{kind}");
            for nothing in [
                json!({}),
                json!(null),
                json!({"expected_answer": null, "pattern": null, "schema": null}),
            ] {
                let error = check.judge(right, &nothing).unwrap_err();
                assert!(
                    matches!(error, CheckError::Missing { .. }),
                    "{kind}: {error}"
                );
            }
        }
    }

    #[test]
    fn unknown_kinds_and_settings_are_refused() {
        for text in [
            json!({"kind": "magic"}),
            json!({}),
            json!({"kind": "exact-match", "tolerance": 1}),
            json!({"kind": "json-schema", "expected_field": "a"}),
        ] {
            assert!(serde_json::from_value::<Check>(text).is_err());
        }
    }

    #[test]
    fn settings_that_cannot_work_are_named() {
        for (check, expected) in [
            (json!({"kind": "exact-match", "extract": "("}), "`extract`"),
            (
                json!({"kind": "exact-match", "extract": "(\\w{1000}){1000}"}),
                "`extract`",
            ),
            (json!({"kind": "numeric", "tolerance": -1.0}), "`tolerance`"),
            (
                json!({"kind": "numeric", "relative_tolerance": -1.0}),
                "`relative_tolerance`",
            ),
            (
                json!({"kind": "multiple-choice", "letters": ""}),
                "`letters`",
            ),
            (
                json!({"kind": "multiple-choice", "letters": "AB1"}),
                "`letters`",
            ),
            (
                json!({"kind": "regular-expression", "pattern": "a)(b"}),
                "`pattern`",
            ),
            (
                json!({"kind": "regular-expression", "pattern": "a", "pattern_field": "b"}),
                "`pattern`",
            ),
            (
                json!({"kind": "json-schema", "schema": {"type": 1}}),
                "`schema`",
            ),
            (
                json!({"kind": "json-schema", "schema": true, "schema_field": "b"}),
                "`schema`",
            ),
        ] {
            let check: Check = serde_json::from_value(check).unwrap();
            let error = check.prepare().unwrap_err().to_string();
            assert!(
                error.starts_with("the setting ") && error.contains(expected),
                "{error}"
            );
        }
    }
}
