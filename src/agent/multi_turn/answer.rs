use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::sample::Sample;
use crate::model::Message;

/// Fields of the row that an answer repeats.
const KEPT: [&str; 3] = ["_ng_task_index", "_ng_rollout_index", "agent_ref"];

/// A finished sample as it is answered. The names of the counts are those of NeMo RL.
#[derive(Serialize)]
struct Body<'a> {
    #[serde(flatten)]
    kept: serde_json::Map<String, Value>,
    task_name: &'a str,
    reward: f64,
    message_log: &'a [Message],
    env_extras: &'a Value,
    final_stop_strings: Option<&'a [String]>,
    truncated: bool,
    terminated: bool,
    max_turns_reached: bool,
    turn_count: u32,
    total_tokens: u64,
    assistant_tokens: u64,
    env_tokens: u64,
    turn_gen_tokens: &'a [u64],
    turn_input_tokens: &'a [u64],
    turn_total_tokens: Vec<u64>,
    per_worker_token_counts: &'a BTreeMap<String, u64>,
    response: Response,
}

#[derive(Serialize)]
struct Response {
    /// As a Responses object has it: a sample that was cut short is incomplete.
    status: &'static str,
    usage: Usage,
}

/// What a model's provider counts: every turn reads the whole log.
#[derive(Serialize)]
struct Usage {
    input_tokens: u64,
    output_tokens: u64,
    total_tokens: u64,
}

/// The answer of a sample that is over, as JSON text.
pub fn body(sample: &Sample, row: &Value, task_name: &str) -> Vec<u8> {
    let counts = sample.counts();
    let kept = KEPT.into_iter().filter_map(|name| {
        let value = row.get(name)?;
        Some((name.to_owned(), value.clone()))
    });
    let inputs = counts.turn_input_tokens.iter().copied();
    let input_tokens = inputs.fold(0, u64::saturating_add);
    let body = Body {
        kept: kept.collect(),
        task_name,
        reward: sample.reward(),
        message_log: sample.log(),
        env_extras: sample.env_info(),
        final_stop_strings: sample.stop_strings(),
        truncated: sample.is_truncated(),
        terminated: sample.is_terminated(),
        max_turns_reached: sample.is_out_of_turns(),
        turn_count: counts.turns,
        total_tokens: counts.assistant_tokens.saturating_add(counts.env_tokens),
        assistant_tokens: counts.assistant_tokens,
        env_tokens: counts.env_tokens,
        turn_gen_tokens: &counts.turn_gen_tokens,
        turn_input_tokens: &counts.turn_input_tokens,
        turn_total_tokens: counts.turn_total_tokens(),
        per_worker_token_counts: &counts.per_worker,
        response: Response {
            status: match sample.is_truncated() {
                true => "incomplete",
                false => "completed",
            },
            usage: Usage {
                input_tokens,
                output_tokens: counts.assistant_tokens,
                total_tokens: input_tokens.saturating_add(counts.assistant_tokens),
            },
        },
    };
    // Every key is a text and nothing here can fail to be written.
    serde_json::to_vec(&body).unwrap_or_default()
}
