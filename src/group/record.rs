use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::gym::{self, GymOptions};
use super::metrics::{SampleFacts, group_metrics, gym_metrics};
use crate::call::RolloutKey;
use crate::model::Message;
use crate::request::MESSAGE_LOG;

/// All rollouts of a prompt as one record, for a trainer.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptGroup {
    /// The prompt of the rollouts.
    pub prompt: GroupPrompt,
    /// The rollouts, in order.
    pub completions: Vec<Completion>,
    /// The metrics of all rollouts, under NeMo RL's names.
    pub rollout_metrics: Map<String, Value>,
}

/// The prompt that the rollouts of a group share.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GroupPrompt {
    /// Index of the task.
    pub task_index: i64,
    /// Name of the agent.
    pub agent_name: String,
    /// The index of the prompt from its row. Default: the index of the task.
    pub prompt_idx: i64,
    /// The task name, if the row has one. For an agent of NeMo Gym, `nemo_gym`.
    pub task_name: Option<String>,
    /// The conversation before the first turn. For an agent of NeMo Gym whose model returns token ids, the first message
    /// of the first rollout.
    pub message_log: Vec<Message>,
    /// The metadata that the environment gets at the first step.
    pub extra_env_info: Value,
    /// The number of rollouts that were asked for.
    pub num_rollouts: u64,
}

/// A rollout of a group.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    /// The attempt that gave it.
    pub key: RolloutKey,
    /// The conversation, the prompt included.
    pub message_log: Vec<Message>,
    /// The environment's last answer. For an agent of NeMo Gym, the agent's whole answer without the token fields that
    /// are in the log.
    pub env_extras: Value,
    /// Whether the rollout was cut short.
    pub truncated: bool,
    /// The score of the rollout.
    pub reward: f64,
    /// The counts of a multi-turn agent. NeMo Gym's agents have none.
    pub sample: Option<SampleFacts>,
}

/// An answer of a rollout.
#[derive(Debug, Clone, Copy)]
pub struct GroupAnswer<'a> {
    /// The attempt that gave it.
    pub key: RolloutKey,
    /// The whole answer as JSON text.
    pub text: &'a str,
}

/// The error for an answer that can't be read as a rollout.
#[derive(Debug, thiserror::Error)]
#[error(
    "the answer of task {}, rollout {}, can't be read: {reason}", key.task_index, key.rollout_index
)]
pub struct GroupAnswerError {
    key: RolloutKey,
    reason: String,
}

impl PromptGroup {
    /// Creates the group from the answers of a prompt's rollouts. Answers without a `message_log` are those of an agent of
    /// NeMo Gym.
    ///
    /// # Errors
    /// An answer can't be read as a rollout.
    pub fn new(prompt: GroupPrompt, answers: &[GroupAnswer<'_>]) -> Result<Self, GroupAnswerError> {
        let options = GymOptions::default();
        let read = |answer: &GroupAnswer<'_>| {
            let value: Value = serde_json::from_str(answer.text).map_err(|e| e.to_string())?;
            if value.get(MESSAGE_LOG).is_some() {
                return Completion::native(answer.key, value).map_err(|error| error.to_string());
            }
            gym::completion(answer.key, &prompt.message_log, value, &options, None)
        };
        let completions = answers.iter().map(|answer| {
            let key = answer.key;
            read(answer).map_err(|reason| GroupAnswerError { key, reason })
        });
        let completions = completions.collect::<Result<_, _>>()?;
        Ok(Self::of(prompt, completions, &options))
    }

    /// Creates the group of these rollouts, and computes its metrics.
    pub(super) fn of(
        mut prompt: GroupPrompt,
        completions: Vec<Completion>,
        options: &GymOptions,
    ) -> Self {
        let samples: Vec<&SampleFacts> = completions
            .iter()
            .filter_map(|it| it.sample.as_ref())
            .collect();
        let rollout_metrics = if samples.len() == completions.len() {
            group_metrics(samples)
        } else {
            prompt.task_name = Some(gym::TASK_NAME.to_owned());
            let first = completions.first().and_then(|one| one.message_log.first());
            if let Some(first) = first.filter(|message| message.token_ids.is_some()) {
                prompt.message_log = vec![first.clone()];
            }
            gym_metrics(
                &prompt.agent_name,
                &completions,
                options.log_full_result_tables,
            )
        };
        Self {
            prompt,
            completions,
            rollout_metrics,
        }
    }

    /// Returns whether every rollout that was asked for is there.
    pub fn is_complete(&self) -> bool {
        self.completions.len() as u64 == self.prompt.num_rollouts
    }

    /// Returns NeMo RL's `PromptGroupRecord` as JSON, with its names alone.
    pub fn record(&self) -> Value {
        let completions = self.completions.iter().map(|completion| {
            json!({
                MESSAGE_LOG: log(&completion.message_log),
                "env_extras": completion.env_extras,
                "truncated": completion.truncated,
                "reward": completion.reward,
            })
        });
        json!({
            "prompt_idx": self.prompt.prompt_idx,
            "prompt": log(&self.prompt.message_log),
            "extra_env_info": self.prompt.extra_env_info,
            "metadata": {"task_name": self.prompt.task_name},
            "completions": completions.collect::<Value>(),
            "rollout_metrics": self.rollout_metrics,
        })
    }
}

/// Returns messages under NeMo RL's names.
fn log(messages: &[Message]) -> Value {
    let message = |message: &Message| {
        let mut fields = Map::new();
        fields.insert("role".into(), message.role.as_str().into());
        fields.insert("content".into(), message.content.clone());
        let mut put = |name: &str, value: Option<Value>| {
            fields.extend(value.map(|value| (name.to_owned(), value)));
        };
        put("token_ids", message.token_ids.as_deref().map(Value::from));
        put(
            "generation_logprobs",
            message.logprobs.as_deref().map(Value::from),
        );
        put(
            "is_invalid_tool_call",
            message.is_invalid_tool_call.map(Value::from),
        );
        put(
            "has_malformed_thinking",
            message.has_malformed_thinking.map(Value::from),
        );
        put(
            "routed_experts",
            message.routed_experts.as_deref().map(Value::from),
        );
        Value::Object(fields)
    };
    messages.iter().map(message).collect()
}

impl Completion {
    /// Reads the answer of a multi-turn agent.
    ///
    /// # Errors
    /// A field is missing or has another type.
    pub(super) fn native(key: RolloutKey, answer: Value) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct NativeAnswer {
            message_log: Vec<Message>,
            #[serde(default)]
            env_extras: Value,
            truncated: bool,
            reward: f64,
        }
        let sample = Some(SampleFacts::of(&answer)?);
        let NativeAnswer {
            message_log,
            env_extras,
            truncated,
            reward,
        } = serde_json::from_value(answer)?;
        Ok(Self {
            key,
            message_log,
            env_extras,
            truncated,
            reward,
            sample,
        })
    }
}
