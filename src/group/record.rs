use serde::Deserialize;
use serde_json::{Map, Value};

use super::gym;
use super::{SampleFacts, group_metrics};
use crate::model::Message;

/// All rollouts of a prompt as one record: what a trainer takes.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptGroup {
    /// What they were asked.
    pub prompt: GroupPrompt,
    /// What came of them, by rollout.
    pub completions: Vec<Completion>,
    /// What is said of all of them, under NeMo RL's names.
    pub rollout_metrics: Map<String, Value>,
}

/// What the rollouts of a group were asked.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GroupPrompt {
    /// Index of the task.
    pub task_index: i64,
    /// The agent that was asked.
    pub agent_name: String,
    /// Index of the prompt, as its row gives it; else that of the task.
    pub prompt_idx: i64,
    /// Name of the task's kind, where the row has one.
    pub task_name: Option<String>,
    /// The conversation before the first turn.
    pub message_log: Vec<Message>,
    /// What the environment was told at the first step.
    pub extra_env_info: Value,
    /// Rollouts that were asked for.
    pub num_rollouts: u64,
}

/// A rollout of a group.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    /// Index of the rollout within the task.
    pub rollout_index: i64,
    /// Number of the attempt that gave it, from 0.
    pub attempt: u32,
    /// The conversation, the prompt included.
    pub message_log: Vec<Message>,
    /// What the environment said last; for an agent of NeMo Gym, its whole answer as `full_result`.
    pub env_extras: Value,
    /// It was cut short.
    pub truncated: bool,
    /// Its score.
    pub reward: f64,
}

/// An answer of a rollout.
#[derive(Debug, Clone, Copy)]
pub struct GroupAnswer<'a> {
    /// Index of the rollout within the task.
    pub rollout_index: i64,
    /// Number of the attempt that gave it, from 0.
    pub attempt: u32,
    /// The whole answer as JSON text.
    pub text: &'a str,
}

/// An answer that is not one of a rollout.
#[derive(Debug, thiserror::Error)]
#[error("the answer of task {task_index}, rollout {rollout_index}, can't be read: {reason}")]
pub struct GroupAnswerError {
    task_index: i64,
    rollout_index: i64,
    reason: String,
}

impl PromptGroup {
    /// Puts the answers of a prompt's rollouts together.
    ///
    /// # Errors
    /// One of them is not the answer of an agent.
    pub fn new(prompt: GroupPrompt, answers: &[GroupAnswer<'_>]) -> Result<Self, GroupAnswerError> {
        let mut completions = Vec::with_capacity(answers.len());
        let mut values = Vec::with_capacity(answers.len());
        for answer in answers {
            let refuse = |reason: String| GroupAnswerError {
                task_index: prompt.task_index,
                rollout_index: answer.rollout_index,
                reason,
            };
            let mut value: Value =
                serde_json::from_str(answer.text).map_err(|source| refuse(source.to_string()))?;
            let facts = match value.get("message_log") {
                Some(_) => SampleFacts::of(&value).map(Facts::Native),
                None => Ok(Facts::Gym),
            };
            let facts = facts.map_err(|source| refuse(source.to_string()))?;
            let completion = match facts {
                Facts::Native(_) => native(answer, &mut value),
                Facts::Gym => gym::completion(answer, &prompt.message_log, &value),
            };
            completions.push(completion.map_err(refuse)?);
            values.push((facts, value));
        }
        let native: Vec<SampleFacts> = values
            .iter()
            .filter_map(|(facts, _)| match facts {
                Facts::Native(facts) => Some(facts.clone()),
                Facts::Gym => None,
            })
            .collect();
        let rollout_metrics = if native.len() == completions.len() {
            group_metrics(&native)
        } else {
            let values: Vec<&Value> = values.iter().map(|(_, value)| value).collect();
            gym::metrics(&prompt.agent_name, &completions, &values)
        };
        Ok(Self {
            prompt,
            completions,
            rollout_metrics,
        })
    }

    /// Every rollout that was asked for is there.
    pub fn is_complete(&self) -> bool {
        self.completions.len() as u64 >= self.prompt.num_rollouts
    }
}

enum Facts {
    Native(SampleFacts),
    Gym,
}

#[derive(Deserialize)]
struct NativeAnswer {
    message_log: Vec<Message>,
    #[serde(default)]
    env_extras: Value,
    truncated: bool,
    reward: f64,
}

fn native(answer: &GroupAnswer<'_>, value: &mut Value) -> Result<Completion, String> {
    // The log is the largest part by far: taken, and not copied.
    let own: NativeAnswer =
        serde_json::from_value(value.take()).map_err(|source| source.to_string())?;
    Ok(Completion {
        rollout_index: answer.rollout_index,
        attempt: answer.attempt,
        message_log: own.message_log,
        env_extras: own.env_extras,
        truncated: own.truncated,
        reward: own.reward,
    })
}
