//! Built-in verifiers for datasets without an environment server: each compares an answer's text with a field of its sample.
//!
//! A [`Check`] judges, and [`Checked`] turns it into an environment. To add one, write its file here and list it in
//! [`CHECKS`]; the configuration, its errors and its help follow. A sample without a usable expected value is a
//! [`CheckError`], never a wrong answer.

pub(super) mod answer_text;
mod exact_match;
mod json_schema;
mod multiple_choice;
mod numeric;
mod regular_expression;

use std::fmt::Debug;

use async_trait::async_trait;
use serde::de::{DeserializeOwned, Error};
use serde_json::Value;

use super::{Environment, Sample, Step, StepResult, Stepped};
use crate::model::text_in;
use crate::retry::{Failure, FailureClass};

/// Every check: its `kind` in the configuration, and the function that reads its settings.
const CHECKS: [(&str, Read); 5] = [
    ("exact-match", read::<exact_match::ExactMatch>),
    ("numeric", read::<numeric::Numeric>),
    ("multiple-choice", read::<multiple_choice::MultipleChoice>),
    (
        "regular-expression",
        read::<regular_expression::RegularExpression>,
    ),
    ("json-schema", read::<json_schema::JsonSchema>),
];

/// Judges answers. A check is deserialized from its settings, all of which have defaults.
trait Check: Debug + Send + Sync {
    /// Refuses settings with which no sample could be judged, and compiles the parts that all samples share.
    ///
    /// # Errors
    /// [`CheckError::Setting`] for settings that contradict each other or do not compile.
    fn prepare(&mut self) -> Result<(), CheckError> {
        Ok(())
    }

    /// Judges the text of an answer by its sample's metadata, NeMo RL's `extra_env_info`.
    ///
    /// # Errors
    /// [`CheckError::Missing`] and [`CheckError::Unusable`] name the field of the metadata that has no usable expected
    /// value; [`CheckError::TooCostly`] says that the answer nests too deep for a schema.
    fn judge(&self, text: &str, metadata: &Value) -> Result<Judgement, CheckError>;
}

/// The judgement of a check about an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Judgement {
    /// Whether the answer is right.
    is_right: bool,
    /// The part of the text that was judged; none if nothing in the text could be an answer.
    answer: Option<String>,
}

/// The reason why a check cannot judge. Except for `TooCostly`, its settings or its sample are wrong, not the answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum CheckError {
    /// A setting with which no sample could be judged.
    #[error("the setting `{name}` of the check {problem}: correct it in the configuration")]
    Setting {
        /// The setting's name.
        name: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The sample does not have the field.
    #[error(
        "neither the row nor its extra_env_info has {fields}: add it to the data, or name the field of the data that has \
         it (--check-option {setting}=FIELD)"
    )]
    Missing {
        /// The names under which it was looked for.
        fields: String,
        /// The setting that names another field.
        setting: &'static str,
    },
    /// The sample has the field, but its value can't be compared with an answer.
    #[error("the field `{field}` {problem}: correct the data")]
    Unusable {
        /// The field's name.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The answer costs too much to judge.
    #[error("the answer cannot be judged: {0}")]
    TooCostly(String),
}

type Read = fn(Value) -> Result<Box<dyn Check>, serde_json::Error>;

fn read<C: Check + DeserializeOwned + 'static>(
    settings: Value,
) -> Result<Box<dyn Check>, serde_json::Error> {
    let mut check: C = serde_json::from_value(settings)?;
    check.prepare().map_err(Error::custom)?;
    Ok(Box::new(check))
}

/// Returns the `kind` of every check.
pub(super) fn kinds() -> impl Iterator<Item = &'static str> {
    CHECKS.iter().map(|(kind, _)| *kind)
}

/// A check as an environment: the first answer ends the episode, with reward 1 if it is right and 0 if it is wrong.
/// It sends no requests.
#[derive(Debug)]
pub(super) struct Checked {
    kind: &'static str,
    check: Box<dyn Check>,
}

impl Checked {
    /// Reads the check of a `kind` from its settings; none if there is no such kind.
    ///
    /// # Errors
    /// A setting is unknown, or no sample could be judged with it.
    pub(super) fn read(kind: &str, settings: &Value) -> Option<Result<Self, serde_json::Error>> {
        let (kind, read) = CHECKS.iter().find(|(known, _)| *known == kind)?;
        let mut settings = settings.clone();
        if let Some(fields) = settings.as_object_mut() {
            fields.shift_remove("kind");
        }
        Some(read(settings).map(|check| Self { kind, check }))
    }

    /// Judges the text of an answer by the metadata of its sample; a plain dataset has the expected answer in the row.
    fn judge_text(
        &self,
        text: &str,
        metadata: &Value,
        row: &Value,
    ) -> Result<Judgement, CheckError> {
        or_in_row(metadata, row, |from| self.check.judge(text, from))
    }

    fn judge(&self, sample: &Sample<'_>) -> Result<StepResult, Failure> {
        let Step {
            messages,
            metadata,
            row,
            task_name,
            turn,
            ..
        } = sample.step;
        let answer = messages.last().map(|said| text_in(&said.content));
        let answer = answer.unwrap_or_default();
        let judgement = self.judge_text(&answer, metadata, row).map_err(|error| {
            let kind = &self.kind;
            let why = format!("{error} ({kind}, turn {turn}, task_name '{task_name}')");
            Failure::new(FailureClass::Data, why)
        })?;
        Ok(StepResult {
            answer: judgement.answer,
            ..StepResult::last(if judgement.is_right { 1.0 } else { 0.0 })
        })
    }
}

/// Calls `find` with the metadata of a sample; if the expected value is missing there, with the row.
pub(super) fn or_in_row<'a, T>(
    metadata: &'a Value,
    row: &'a Value,
    find: impl Fn(&'a Value) -> Result<T, CheckError>,
) -> Result<T, CheckError> {
    match find(metadata) {
        Err(CheckError::Missing { .. }) => find(row),
        found => found,
    }
}

#[async_trait]
impl Environment for Checked {
    fn check_task(&self, metadata: &Value, row: &Value) -> Result<(), String> {
        // Every check reads the expected value before it looks at the answer.
        let judgement = self.judge_text("", metadata, row);
        judgement.map(drop).map_err(|error| error.to_string())
    }

    async fn step(&self, samples: &mut [Sample<'_>]) -> Stepped {
        Ok(samples.iter().map(|sample| self.judge(sample)).collect())
    }

    fn address(&self) -> String {
        format!("{} (built in)", self.kind)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::environment::scene::Scene;

    fn read(settings: Value) -> Option<Result<Checked, serde_json::Error>> {
        Checked::read(settings.get("kind")?.as_str()?, &settings)
    }

    fn checked(settings: Value) -> Result<Checked, serde_json::Error> {
        read(settings).unwrap()
    }

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
            let check = checked(json!({"kind": kind})).unwrap().check;
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
            assert!(!matches!(read(text), Some(Ok(_))));
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
            let error = checked(check).unwrap_err().to_string();
            assert!(
                error.starts_with("the setting ") && error.contains(expected),
                "{error}"
            );
        }
    }

    async fn step(metadata: Value, row: Value) -> Result<StepResult, Failure> {
        let checked = checked(json!({"kind": "exact-match"})).unwrap();
        let mut scene = Scene::new(7);
        scene.metadata = metadata;
        scene.row = row;
        let mut results = checked.step(&mut [scene.sample()]).await?;
        assert!(scene.log.take().is_empty());
        results.remove(0)
    }

    #[tokio::test]
    async fn the_last_answer_is_judged_by_the_metadata_or_the_row() {
        let right = json!({"expected_answer": "second of 7"});
        let wrong = json!({"expected_answer": "first of 7"});
        for (metadata, row, reward) in [
            (right.clone(), wrong.clone(), 1.0),
            (wrong.clone(), right.clone(), 0.0),
            (Value::Null, right, 1.0),
            (json!({"other": 1}), wrong, 0.0),
        ] {
            let result = step(metadata, row).await.unwrap();
            assert_eq!((result.reward, result.terminated), (reward, true));
            assert_eq!(result.answer.as_deref(), Some("second of 7"));
        }
    }

    #[tokio::test]
    async fn a_sample_that_cannot_be_judged_is_a_failure_and_not_wrong() {
        let failure = step(Value::Null, json!({})).await.unwrap_err();
        assert_eq!(failure.class, FailureClass::Data);
        for part in ["turn 2", "task_name 'math'", "`expected_answer`"] {
            assert!(failure.message.contains(part), "{failure:?}");
        }
    }
}
