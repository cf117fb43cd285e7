//! The account of a rollout: its reward and its numbers.

use std::borrow::Cow;

use indexmap::IndexMap;

use super::fields::Values;
use crate::json::quote;

/// Fields of the top level that are no numbers of the rollout, or have a place of their own.
const OWN: [&str; 4] = ["reward", "response", "_ng_task_index", "_ng_rollout_index"];

/// What [`AnswerFields::info`](super::AnswerFields::info) says.
pub(super) fn info(fields: &Values<'_>, usage: &Values<'_>) -> String {
    let mut info: IndexMap<&str, Cow<str>> = IndexMap::with_capacity(fields.len() + usage.len());
    if let Some(reward) = fields.get("reward") {
        info.insert(
            "reward",
            exact(reward.text).unwrap_or(Cow::Borrowed(reward.text)),
        );
    }
    let own = |name: &str| OWN.contains(&name);
    let fields = fields.iter().filter(|(name, _)| !own(name));
    for (name, value) in usage.iter().chain(fields) {
        if let Some(number) = number(value.text) {
            info.insert(name, number);
        }
    }
    if let Some(place) = info.get_index_of("rollout_id") {
        info.move_index(place, 0);
    }
    let mut text = String::with_capacity(32 * info.len() + 2);
    for (name, value) in &info {
        text.push(if text.is_empty() { '{' } else { ',' });
        text.push_str(&quote(name));
        text.push(':');
        text.push_str(value);
    }
    text.push_str(if text.is_empty() { "{}" } else { "}" });
    text
}

/// A number as it is written, a boolean as 0 or 1.
fn number(value: &str) -> Option<Cow<'_, str>> {
    match value {
        "true" => Some("1".into()),
        "false" => Some("0".into()),
        _ => exact(value),
    }
}

/// A number as it is written, but as a float where it is an integer that 64 bits do not hold.
fn exact(value: &str) -> Option<Cow<'_, str>> {
    let digits = value.strip_prefix('-').unwrap_or(value);
    if !digits.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let integer = digits.bytes().all(|byte| byte.is_ascii_digit());
    let fits = value.parse::<i64>().is_ok() || value.parse::<u64>().is_ok();
    match value.parse::<f64>() {
        Ok(_) if value == "-0" => Some("0".into()),
        Ok(float) if integer && !fits => serde_json::to_string(&float).ok().map(Cow::Owned),
        _ => Some(value.into()),
    }
}

#[cfg(test)]
mod tests {
    use crate::answer::AnswerFields;

    fn info(result: &str) -> String {
        AnswerFields::parse(result).unwrap().info
    }

    #[test]
    fn the_top_level_wins_over_the_usage_but_for_the_reward() {
        let result = r#"{"b": 1, "reward": true, "a": false, "text": "x", "_ng_task_index": 3,
            "response": {"usage": {"a": 7, "tokens": 1e3, "reward": 0.5, "details": {"n": 1}}}}"#;
        assert_eq!(info(result), r#"{"reward":0.5,"a":0,"tokens":1e3,"b":1}"#);
    }

    #[test]
    fn the_reward_stays_as_it_is() {
        for reward in [
            "null",
            "true",
            r#""0.5""#,
            "[1, 2]",
            "0.50",
            "9007199254740993",
        ] {
            let result = format!(r#"{{"reward": {reward}}}"#);
            assert_eq!(info(&result), format!(r#"{{"reward":{reward}}}"#));
        }
        assert_eq!(info("{}"), "{}");
    }

    #[test]
    fn integers_beyond_64_bits_become_floats() {
        assert_eq!(
            info(r#"{"a": 18446744073709551615, "b": 18446744073709551616, "c": -0}"#),
            r#"{"a":18446744073709551615,"b":1.8446744073709552e+19,"c":0}"#
        );
    }

    #[test]
    fn names_are_written_as_json() {
        assert_eq!(
            info(r#"{"a\"b": 1, "": 2, "rollout_id": 3}"#),
            r#"{"rollout_id":3,"a\"b":1,"":2}"#
        );
    }
}
