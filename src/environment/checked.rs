use async_trait::async_trait;
use serde_json::Value;

use super::checks::{CheckError, PreparedCheck};
use super::{Environment, Sample, Step, StepResult, Stepped};
use crate::model::{Message, OBSERVATION_ROLE};
use crate::retry::{Failure, FailureClass};

/// A check as an environment: the first answer ends the episode, with reward 1 where it is right and 0
/// where it is wrong. It asks nobody.
#[derive(Debug)]
pub struct Checked {
    kind: String,
    check: PreparedCheck,
}

impl Checked {
    /// A check; `kind` is its name, for people to read.
    pub fn new(kind: impl Into<String>, check: PreparedCheck) -> Self {
        Self {
            kind: kind.into(),
            check,
        }
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
        let answer = messages.last().map(text).unwrap_or_default();
        // Who has nothing but a data set has the expected answer in the row itself.
        let judgement = match self.check.judge(&answer, metadata) {
            Err(error @ CheckError::Missing { .. }) => match self.check.judge(&answer, row) {
                Err(CheckError::Missing { .. }) => Err(error),
                judgement => judgement,
            },
            judgement => judgement,
        };
        let judgement = judgement.map_err(|error| {
            let rollout = sample.log.key();
            let kind = &self.kind;
            let why = format!(
                "rollout {rollout}, turn {turn}, task_name '{task_name}' ({kind}): {error}"
            );
            Failure::new(FailureClass::Data, why)
        })?;
        Ok(StepResult {
            observation: Message::text(OBSERVATION_ROLE, ""),
            metadata: Value::Null,
            next_stop_strings: None,
            reward: if judgement.is_right { 1.0 } else { 0.0 },
            terminated: true,
            truncated: false,
            answer: judgement.answer,
        })
    }
}

/// What a message says.
fn text(message: &Message) -> String {
    match &message.content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part.get("text")?.as_str())
            .collect(),
        _ => String::new(),
    }
}

#[async_trait]
impl Environment for Checked {
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
    use crate::environment::checks::Check;
    use crate::environment::scene::Scene;

    async fn step(metadata: Value, row: Value) -> Result<StepResult, Failure> {
        let check: Check = serde_json::from_value(json!({"kind": "exact-match"})).unwrap();
        let checked = Checked::new("exact-match", check.prepare().unwrap());
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
        for part in ["rollout 3-7", "task_name 'math'", "`expected_answer`"] {
            assert!(failure.message.contains(part), "{failure:?}");
        }
    }
}
