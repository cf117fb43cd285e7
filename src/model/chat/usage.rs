//! What an answer cost.

use serde_json::{Map, Value, json};

/// The `usage` of Responses; null where the server did not count. Details that it did not give are null, as in NeMo
/// Gym: zero would say that nothing was cached.
pub(super) fn usage(completion: &Map<String, Value>) -> Value {
    let Some(usage) = completion.get("usage") else {
        return Value::Null;
    };
    let count = |name: &str| usage.get(name).and_then(Value::as_u64);
    let detail = |group: &str, name: &str, others: &[&str]| {
        let own = usage.get(group).and_then(|group| group.get(name)?.as_u64());
        own.or_else(|| others.iter().find_map(|other| count(other)))
    };
    let (Some(input), Some(output)) = (count("prompt_tokens"), count("completion_tokens")) else {
        return Value::Null;
    };
    let cached = detail(
        "prompt_tokens_details",
        "cached_tokens",
        &["cached_input_tokens", "cache_read_input_tokens"],
    );
    let reasoning = detail(
        "completion_tokens_details",
        "reasoning_tokens",
        &["reasoning_output_tokens"],
    );
    json!({
        "input_tokens": input,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": count("total_tokens").unwrap_or_else(|| input.saturating_add(output)),
    })
}
