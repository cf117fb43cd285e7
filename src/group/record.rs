use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::metrics::{SampleFacts, group_metrics, gym_metrics, number};
use crate::call::RolloutKey;
use crate::model::Message;

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
    /// The task name, if the row has one.
    pub task_name: Option<String>,
    /// The conversation before the first turn.
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
    /// The environment's last answer. For an agent of NeMo Gym, the agent's whole answer as `full_result`.
    pub env_extras: Value,
    /// Whether the rollout was cut short.
    pub truncated: bool,
    /// The score of the rollout.
    pub reward: f64,
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
    /// Creates the group from the answers of a prompt's rollouts.
    ///
    /// # Errors
    /// An answer can't be read as a rollout.
    pub fn new(prompt: GroupPrompt, answers: &[GroupAnswer<'_>]) -> Result<Self, GroupAnswerError> {
        let mut completions = Vec::with_capacity(answers.len());
        let mut values = Vec::with_capacity(answers.len());
        let mut facts = Vec::new();
        for answer in answers {
            let refuse = |reason: String| GroupAnswerError {
                key: answer.key,
                reason,
            };
            let unreadable = |source: serde_json::Error| refuse(source.to_string());
            let mut value: Value = serde_json::from_str(answer.text).map_err(unreadable)?;
            let completion = if value.get("message_log").is_some() {
                facts.push(SampleFacts::of(&value).map_err(unreadable)?);
                native(answer.key, value.take()).map_err(unreadable)?
            } else {
                through_gym(answer.key, &prompt.message_log, &value).map_err(refuse)?
            };
            completions.push(completion);
            values.push(value);
        }
        let rollout_metrics = if facts.len() == completions.len() {
            group_metrics(&facts)
        } else {
            gym_metrics(&prompt.agent_name, &completions, &values)
        };
        Ok(Self {
            prompt,
            completions,
            rollout_metrics,
        })
    }

    /// Returns whether every rollout that was asked for is there.
    pub fn is_complete(&self) -> bool {
        self.completions.len() as u64 >= self.prompt.num_rollouts
    }
}

/// Returns the rollout in a multi-turn agent's answer. The log is large, so it is moved and not copied.
fn native(key: RolloutKey, answer: Value) -> Result<Completion, serde_json::Error> {
    #[derive(Deserialize)]
    struct NativeAnswer {
        message_log: Vec<Message>,
        #[serde(default)]
        env_extras: Value,
        truncated: bool,
        reward: f64,
    }
    let NativeAnswer {
        message_log,
        env_extras,
        truncated,
        reward,
    } = serde_json::from_value(answer)?;
    Ok(Completion {
        key,
        message_log,
        env_extras,
        truncated,
        reward,
    })
}

/// An item of a response's output.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Item {
    role: Option<String>,
    content: Value,
    #[serde(rename = "type")]
    kind: Option<String>,
    output: Value,
    prompt_token_ids: Option<Vec<u32>>,
    generation_token_ids: Option<Vec<u32>>,
    generation_log_probs: Option<Vec<f64>>,
}

/// Returns the rollout in the answer of a NeMo Gym agent. If tokens are known, a generation follows a user
/// message with the tokens that no message has yet, as in NeMo RL. Otherwise the log holds texts.
fn through_gym(key: RolloutKey, prompt: &[Message], value: &Value) -> Result<Completion, String> {
    let response = value.get("response");
    let items: Vec<Item> = match response.and_then(|response| response.get("output")) {
        Some(output) => Deserialize::deserialize(output)
            .map_err(|source| format!("response.output: {source}"))?,
        None => Vec::new(),
    };
    let has_tokens = |item: &Item| {
        let tokens = item.generation_token_ids.as_ref();
        tokens.is_some_and(|tokens| !tokens.is_empty())
    };
    let message_log = if items.iter().any(has_tokens) {
        with_tokens(items)?
    } else {
        let texts = items.into_iter().filter_map(text);
        prompt.iter().cloned().chain(texts).collect()
    };
    let incomplete = response.and_then(|response| response.get("incomplete_details"));
    let reward = value.get("reward").and_then(number);
    Ok(Completion {
        key,
        message_log,
        truncated: incomplete.is_some_and(|details| !details.is_null()),
        reward: reward.ok_or("it has no numeric reward")?,
        env_extras: json!({ "full_result": value }),
    })
}

fn with_tokens(items: Vec<Item>) -> Result<Vec<Message>, String> {
    let mut log = Vec::new();
    let mut seen: Vec<u32> = Vec::new();
    for item in items {
        let Some(generated) = item.generation_token_ids.filter(|ids| !ids.is_empty()) else {
            continue;
        };
        let prompt = item.prompt_token_ids.unwrap_or_default();
        let Some(new) = prompt.strip_prefix(seen.as_slice()) else {
            return Err(
                "the tokens of a prompt do not begin with those of the turns before".to_owned(),
            );
        };
        log.push(tokens("user", new.to_vec(), None));
        seen = prompt;
        seen.extend(&generated);
        log.push(tokens("assistant", generated, item.generation_log_probs));
    }
    Ok(log)
}

fn tokens(role: &str, ids: Vec<u32>, logprobs: Option<Vec<f64>>) -> Message {
    Message {
        token_count: ids.len() as u64,
        token_ids: Some(ids),
        logprobs,
        ..Message::text(role, "")
    }
}

fn text(item: Item) -> Option<Message> {
    let (role, content) = match item.kind.as_deref() {
        Some("function_call_output") => ("tool".to_owned(), item.output),
        Some("message") | None => (item.role?, item.content),
        Some(_) => return None,
    };
    Some(Message {
        content,
        ..Message::text(&role, "")
    })
}
