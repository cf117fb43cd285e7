use async_trait::async_trait;
use serde_json::Value;

use super::checks::{CheckError, PreparedCheck};
use super::{Environment, Sample, Step, StepResult};
use crate::failure::{Failure, FailureClass};
use crate::model::{Message, OBSERVATION_ROLE};

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
    async fn step(&self, samples: &mut [Sample<'_>]) -> Result<Vec<StepResult>, Failure> {
        samples.iter().map(|sample| self.judge(sample)).collect()
    }

    fn address(&self) -> String {
        format!("{} (built in)", self.kind)
    }
}
