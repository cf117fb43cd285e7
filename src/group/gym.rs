//! The answers of NeMo Gym's agents as completions.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Completion;
use super::metrics::describe;
use super::record::GroupAnswer;
use crate::model::Message;

#[derive(Default, Deserialize)]
struct Item {
    #[serde(default)]
    role: Option<String>,
    #[serde(default)]
    content: Value,
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    output: Value,
    #[serde(default)]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(default)]
    generation_token_ids: Option<Vec<u32>>,
    #[serde(default)]
    generation_log_probs: Option<Vec<f64>>,
}

/// The log of a rollout. Where the model's tokens are known, what came before a generation is a user's
/// message of the tokens that were not seen yet, as NeMo RL has it; else the log is one of texts.
pub(super) fn completion(
    answer: &GroupAnswer<'_>,
    prompt: &[Message],
    value: &Value,
) -> Result<Completion, String> {
    let response = value.get("response");
    let output = response.and_then(|response| response.get("output"));
    let items: Vec<Item> = match output {
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
    Ok(Completion {
        rollout_index: answer.rollout_index,
        attempt: answer.attempt,
        message_log,
        truncated: incomplete.is_some_and(|details| !details.is_null()),
        reward: reward(value).ok_or("it has no numeric reward")?,
        env_extras: json!({ "full_result": value }),
    })
}

fn reward(value: &Value) -> Option<f64> {
    let reward = value.get("reward")?;
    reward
        .as_f64()
        .or_else(|| reward.as_bool().map(|reward| f64::from(u8::from(reward))))
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
    match item.kind.as_deref() {
        Some("function_call_output") => Some(Message {
            content: item.output,
            ..Message::text("tool", "")
        }),
        Some("message") | None => Some(Message {
            content: item.content,
            ..Message::text(item.role?, "")
        }),
        Some(_) => None,
    }
}

/// What NeMo RL says of a group that came through NeMo Gym: the numbers that the first answer has, under
/// the agent's name, as means over all answers, beside rewards, turns and tokens.
pub(super) fn metrics(
    agent: &str,
    completions: &[Completion],
    answers: &[&Value],
) -> Map<String, Value> {
    let mut metrics = Map::new();
    let count = completions.len();
    if count == 0 {
        return metrics;
    }
    let assistant = |completion: &Completion| -> Vec<u64> {
        let log = completion.message_log.iter();
        log.filter(|message| message.role == "assistant")
            .map(|message| message.token_count)
            .collect()
    };
    let of = |value: fn(&Completion) -> f64| completions.iter().map(value).collect::<Vec<_>>();
    let turns = completions.iter().map(|one| assistant(one).len() as f64);
    let generated = completions
        .iter()
        .map(|one| assistant(one).iter().sum::<u64>() as f64);
    let longest = completions
        .iter()
        .map(|one| assistant(one).into_iter().max().unwrap_or_default() as f64);
    let mut spread = |name: &str, values: &[f64]| {
        let mut put = |name: &str, value| metrics.insert(name.to_owned(), value);
        describe(&mut put, name, values);
    };
    spread("total_reward", &of(|one| one.reward));
    spread("turns_per_sample", &turns.collect::<Vec<_>>());
    let all_tokens = |one: &Completion| {
        let log = one.message_log.iter();
        log.map(|message| message.token_count as f64).sum()
    };
    spread("total_tokens_per_sample", &of(all_tokens));
    spread("gen_tokens_per_sample", &generated.collect::<Vec<_>>());
    spread("max_gen_tokens_per_turn", &longest.collect::<Vec<_>>());
    let truncated = completions.iter().filter(|one| one.truncated).count();
    let rate = |share: usize| Value::from(share as f64 / count as f64);
    metrics.insert("natural_termination_rate".into(), rate(count - truncated));
    metrics.insert("truncation_rate".into(), rate(truncated));
    let number = |value: &Value| match value {
        Value::Bool(value) => Some(f64::from(u8::from(*value))),
        value => value.as_f64(),
    };
    let first = answers.first().and_then(|answer| answer.as_object());
    for (name, value) in first.into_iter().flatten() {
        if number(value).is_none() {
            continue;
        }
        let values = answers
            .iter()
            .filter_map(|answer| number(answer.get(name)?));
        let mean = values.sum::<f64>() / count as f64;
        metrics.insert(format!("{agent}/{name}"), mean.into());
    }
    metrics
}
