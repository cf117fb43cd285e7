//! The account of a rollout: its reward and its numbers.

use std::borrow::Cow;

use super::fields::Values;
use crate::json::quote;

/// Fields of the top level that are no numbers of the rollout, or have a place of their own.
const OWN: [&str; 4] = ["reward", "response", "_ng_task_index", "_ng_rollout_index"];

/// What [`AnswerFields::info`](super::AnswerFields::info) says.
pub(super) fn info(fields: &Values<'_>, usage: &Values<'_>) -> String {
    let mut text = String::with_capacity(32 * (fields.len() + usage.len()) + 2);
    let mut push = |name: &str, value: &str| {
        text.push(if text.is_empty() { '{' } else { ',' });
        push_quoted(&mut text, name);
        text.push(':');
        text.push_str(value);
    };
    let own = |name: &str| OWN.contains(&name);
    let of_top = |name: &str| {
        let value = fields.get(name).filter(|_| !own(name));
        value.and_then(|value| number(value.text))
    };
    let first = "rollout_id";
    let id = || of_top(first).or_else(|| usage.get(first).and_then(|value| number(value.text)));
    if let Some(id) = id() {
        push(first, &id);
    }
    let of_usage = |name: &str| usage.get(name).and_then(|value| number(value.text));
    if let Some(reward) = fields.get("reward") {
        let usual = || exact(reward.text).unwrap_or(Cow::Borrowed(reward.text));
        push("reward", &of_usage("reward").unwrap_or_else(usual));
    }
    for (name, value) in usage {
        let is_said = name == first || (name == "reward" && fields.contains_key("reward"));
        if let Some(number) = number(value.text).filter(|_| !is_said) {
            push(name, &of_top(name).unwrap_or(number));
        }
    }
    for (name, value) in fields {
        if let Some(number) = number(value.text)
            && !own(name)
            && name != first
            && of_usage(name).is_none()
        {
            push(name, &number);
        }
    }
    text.push_str(if text.is_empty() { "{}" } else { "}" });
    text
}

/// Names that need no escapes are most of them.
fn push_quoted(text: &mut String, name: &str) {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
    if name.as_bytes().iter().all(is_plain) {
        text.extend(["\"", name, "\""]);
    } else {
        text.push_str(&quote(name));
    }
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
    if integer && digits.len() < 19 && value != "-0" {
        return Some(value.into());
    }
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
