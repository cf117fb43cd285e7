use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::Completion;
use super::experts;
use crate::call::RolloutKey;
use crate::model::{Message, Tokenizer};
use crate::python::{float, is_truthy_value};

/// The task name of every prompt that NeMo Gym rolls out.
pub(super) const TASK_NAME: &str = "nemo_gym";

/// How the answers of NeMo Gym's agents become rollouts. The defaults are NeMo RL's.
#[derive(Debug, Clone)]
pub struct GymOptions {
    /// Texts that show that the model wrote a tool call into its answer or its reasoning.
    pub invalid_tool_call_patterns: Vec<String>,
    /// Tags that have no place in an answer, and of which each may appear once in a reasoning.
    pub thinking_tags: Vec<String>,
    /// Whether `instance_config.mask_sample` of an answer is kept.
    pub mask_env_flagged_samples: bool,
    /// Whether the metrics of a group have the whole answers, as the table `AGENT/full_result`.
    pub log_full_result_tables: bool,
    /// Writes the texts of tokens into the answer, as `prompt_str` and `generation_str` of each generation. Without one,
    /// they are left out.
    pub tokenizer: Option<Arc<dyn Tokenizer>>,
}

impl Default for GymOptions {
    fn default() -> Self {
        let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        Self {
            invalid_tool_call_patterns: texts(&[
                "<tool_call>",
                "</tool_call>",
                "<function_call>",
                "</function_call>",
            ]),
            thinking_tags: texts(&["<think>", "</think>"]),
            mask_env_flagged_samples: true,
            log_full_result_tables: true,
            tokenizer: None,
        }
    }
}

/// The fields of an item that a model generated.
#[derive(Deserialize)]
struct Generated {
    prompt_token_ids: Vec<u32>,
    generation_token_ids: Vec<u32>,
    /// With the 32 bits that NeMo RL's tensors have.
    generation_log_probs: Vec<f32>,
    routed_experts: Option<Value>,
}

/// What moves to the log.
const TOKEN_FIELDS: [&str; 4] = [
    "prompt_token_ids",
    "generation_token_ids",
    "generation_log_probs",
    "routed_experts",
];

/// Returns the rollout in the answer of a NeMo Gym agent. A generation follows a user message with the tokens that no
/// message has yet, as in NeMo RL, and its token fields move from the answer to the log. If there are no tokens, and no
/// `max_seq_len`, the log is the prompt and the texts of the answer.
///
/// # Errors
/// The answer lacks something, or its turns do not continue each other.
pub(super) fn completion(
    key: RolloutKey,
    prompt: &[Message],
    mut answer: Value,
    options: &GymOptions,
    max_seq_len: Option<u64>,
) -> Result<Completion, String> {
    let reward = answer.get("reward");
    let reward = reward.and_then(|reward| float(&reward.to_string()));
    let reward = reward.ok_or("it has no numeric reward")?;
    let has_params = answer
        .get("responses_create_params")
        .is_some_and(Value::is_object);
    if max_seq_len.is_some() && !has_params {
        return Err("its responses_create_params are no object".into());
    }
    let output = answer.pointer_mut("/response/output");
    let output = output.and_then(Value::as_array_mut);
    let mut message_log = match output {
        Some(items) => with_tokens(items, options)?,
        None if max_seq_len.is_some() => return Err("it has no response.output".into()),
        None => Vec::new(),
    };
    let truncated = if !message_log.is_empty() {
        let tokens: u64 = message_log.iter().map(|message| message.token_count).sum();
        max_seq_len == Some(tokens)
    } else if max_seq_len.is_some() {
        return Err(
            "no item of response.output has generation_token_ids: the model must return token ids, and the prompt \
             must leave it room to generate"
                .into(),
        );
    } else {
        let items = answer.pointer("/response/output").and_then(Value::as_array);
        let texts = items.into_iter().flatten().filter_map(text);
        message_log = prompt.iter().cloned().chain(texts).collect();
        let incomplete = answer.pointer("/response/incomplete_details");
        incomplete.is_some_and(|details| !details.is_null())
    };
    if !options.mask_env_flagged_samples {
        match answer.get_mut("instance_config") {
            Some(Value::Object(config)) => {
                config.shift_remove("mask_sample");
            }
            Some(config) if is_truthy_value(config) => {
                return Err("its instance_config is no object".into());
            }
            _ => {}
        }
    }
    Ok(Completion {
        key,
        message_log,
        env_extras: answer,
        truncated,
        reward,
        sample: None,
    })
}

fn with_tokens(items: &mut [Value], options: &GymOptions) -> Result<Vec<Message>, String> {
    let mut log = Vec::new();
    let mut seen: Vec<u32> = Vec::new();
    for (number, item) in items.iter_mut().enumerate() {
        let of_item = |why: String| format!("response.output[{number}]: {why}");
        if !item.is_object() {
            return Err(of_item("it is no object".to_owned()));
        }
        if !item
            .get("generation_token_ids")
            .is_some_and(is_truthy_value)
        {
            continue;
        }
        let generated = Generated::deserialize(&*item);
        let mut generated = generated.map_err(|source| of_item(source.to_string()))?;
        let Some(new) = generated.prompt_token_ids.strip_prefix(seen.as_slice()) else {
            let why = "its prompt_token_ids do not begin with the tokens of the turns before";
            return Err(of_item(why.to_owned()));
        };
        let lengths = (seen.len(), new.len(), generated.generation_token_ids.len());
        let experts = generated.routed_experts.take().map(|field| {
            let experts = experts::by_token(field)?;
            experts::split(experts, log.last_mut(), lengths)
        });
        let (of_prompt, of_generation) = experts.transpose().map_err(of_item)?.unzip();
        log.push(Message {
            routed_experts: of_prompt,
            ..tokens("user", new.to_vec())
        });
        let (is_invalid_tool_call, has_malformed_thinking) = flags(item, options);
        if let Value::Object(fields) = item {
            move_tokens(fields, &generated, options);
        }
        let logprobs = generated.generation_log_probs.into_iter();
        seen = generated.prompt_token_ids;
        seen.extend(&generated.generation_token_ids);
        log.push(Message {
            logprobs: Some(logprobs.map(f64::from).collect()),
            is_invalid_tool_call: Some(is_invalid_tool_call),
            has_malformed_thinking: Some(has_malformed_thinking),
            routed_experts: of_generation,
            ..tokens("assistant", generated.generation_token_ids)
        });
    }
    Ok(log)
}

/// Removes the token fields of an item, and adds their texts.
fn move_tokens(item: &mut Map<String, Value>, generated: &Generated, options: &GymOptions) {
    for name in TOKEN_FIELDS {
        item.shift_remove(name);
    }
    let tokenizer = options.tokenizer.as_ref();
    for (name, ids) in [
        ("prompt_str", &generated.prompt_token_ids),
        ("generation_str", &generated.generation_token_ids),
    ] {
        if let Some(text) = tokenizer.and_then(|tokenizer| tokenizer.decode(ids)) {
            item.insert(name.to_owned(), text.into());
        }
    }
}

fn tokens(role: &str, ids: Vec<u32>) -> Message {
    Message {
        token_count: ids.len() as u64,
        token_ids: Some(ids),
        ..Message::text(role, "")
    }
}

/// Returns whether an item has a tool call in its text, and whether its thinking is malformed. The first part counts.
fn flags(item: &Value, options: &GymOptions) -> (bool, bool) {
    let first = |parts: &str| item.get(parts)?.get(0)?.get("text")?.as_str();
    let is_reasoning = item.get("type").is_some_and(|kind| kind == "reasoning");
    let (text, most) = match (first("content"), first("summary")) {
        (Some(answer), _) => (answer, 0),
        (None, Some(reasoning)) if is_reasoning => (reasoning, 1),
        _ => return (false, false),
    };
    let count = |part: &String| text.matches(part.as_str()).count();
    let mut patterns = options.invalid_tool_call_patterns.iter();
    let mut tags = options.thinking_tags.iter();
    (
        patterns.any(|pattern| count(pattern) > 0),
        tags.any(|tag| count(tag) > most),
    )
}

/// Returns an item of a response as a message without tokens.
fn text(item: &Value) -> Option<Message> {
    let field = |name: &str| item.get(name).cloned();
    let (role, content) = match item.get("type").and_then(Value::as_str) {
        Some("function_call_output") => ("tool", field("output")),
        Some("message") | None => (item.get("role")?.as_str()?, field("content")),
        Some(_) => return None,
    };
    Some(Message {
        content: content.unwrap_or_default(),
        ..Message::text(role, "")
    })
}
