//! [`AnswerFields`], taken in one pass over an answer that builds no value of anything else.

use std::borrow::Cow;
use std::fmt;

use foldhash::fast::RandomState;
use indexmap::IndexMap;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::info::info;
use super::number::Number;
use crate::python::is_truthy;

/// The fields of a rollout's answer that the collector itself uses.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct AnswerFields {
    /// Every numeric or boolean field at the top and in `response.usage`, in the order of first
    /// appearance; a field of `usage` wins over one of the same name at the top, and keeps its
    /// place. The two index keys are left out.
    pub metrics: Vec<(String, Number)>,
    /// Top-level `reward`, where it is a number or a boolean.
    pub reward: Option<f64>,
    /// `usage.input_tokens`, or `usage.prompt_tokens`.
    pub input_tokens: Option<i64>,
    /// `usage.output_tokens`, or `usage.completion_tokens`.
    pub output_tokens: Option<i64>,
    /// `usage.total_tokens`.
    pub total_tokens: Option<i64>,
    /// Truthy `_ng_no_persist`: as if it had never been answered.
    pub no_persist: bool,
    /// `_ng_failure_class`, where present and not null: a failed attempt.
    pub failure_class: Option<String>,
    /// Truthy `_ng_failure_terminal`: never to be tried again.
    pub failure_terminal: bool,
    /// Truthy `mask_sample`: the environment says that the reward tells nothing of the agent.
    pub masked: bool,
    /// `ng_perf`, where it is an object: what NeMo Gym observed of the rollout's turns and tokens.
    pub perf: Option<String>,
    /// `response` is there and is an object.
    pub has_response: bool,
    /// The response was cut off: its `status` is `incomplete`, or it has `incomplete_details`. None
    /// where it says neither that nor another status.
    pub truncated: Option<bool>,
    /// Account of the rollout as a JSON object: the reward as it is and every other number or boolean
    /// of `response.usage` and of the top level, in this order and as they are written. Of two of one
    /// name the one of the top level counts, at the place of the first; for the reward, the one of the
    /// usage. Booleans become 0 or 1, but not a boolean reward. A field `rollout_id` comes first.
    pub info: String,
}

impl AnswerFields {
    /// Takes the fields from an answer's text.
    ///
    /// # Errors
    /// The text is not one JSON object.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str::<Top>(text).map(Top::into_fields)
    }
}

/// With it an environment says that a reward tells nothing of the agent.
pub const MASK_SAMPLE: &str = "mask_sample";

#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// A value, no deeper than it is needed. Its text is kept rather than its value: a long string is
/// then skipped instead of unescaped.
type Raw<'a> = &'a RawValue;

/// A value as it is written, and the number that it is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Value<'a> {
    pub(super) text: &'a str,
    number: Option<Number>,
}

impl<'a> Value<'a> {
    fn of(text: &'a str) -> Self {
        let number = Number::of(text);
        Self { text, number }
    }
}

/// Values by name, in order; of two of one name the last, at the place of the first.
pub(super) type Values<'a> = IndexMap<Cow<'a, str>, Value<'a>, RandomState>;

/// Most answers have fewer fields than this.
const FIELDS: usize = 16;

#[derive(Default)]
struct Top<'a> {
    fields: Values<'a>,
    usage: Values<'a>,
    truncated: Option<bool>,
    no_persist: bool,
    failure_class: Option<String>,
    failure_terminal: bool,
    masked: bool,
    perf: Option<String>,
    has_response: bool,
}

impl Top<'_> {
    fn into_fields(self) -> AnswerFields {
        let usage = |names: [&str; 2]| {
            let number = names.iter().find_map(|name| self.usage.get(*name)?.number);
            number.map(|number| number.as_i64().unwrap_or_else(|| number.as_f64() as i64))
        };
        let reward = self.fields.get("reward").and_then(|value| value.number);
        let mut answer = AnswerFields {
            reward: reward.map(Number::as_f64),
            input_tokens: usage(["input_tokens", "prompt_tokens"]),
            output_tokens: usage(["output_tokens", "completion_tokens"]),
            total_tokens: usage(["total_tokens", "total_tokens"]),
            no_persist: self.no_persist,
            failure_class: self.failure_class,
            failure_terminal: self.failure_terminal,
            masked: self.masked,
            perf: self.perf,
            has_response: self.has_response,
            truncated: self.truncated,
            info: info(&self.fields, &self.usage),
            metrics: Vec::new(),
        };
        let Self { fields, usage, .. } = self;
        let both = fields.len() + usage.len();
        let mut metrics: Vec<(String, Number)> = Vec::with_capacity(both);
        let known = |name: &str| name != "_ng_task_index" && name != "_ng_rollout_index";
        let of_usage = |name: &str| usage.get(name).map(|value| value.number);
        for (name, value) in &fields {
            let number = of_usage(name).unwrap_or(value.number);
            if let Some(number) = number.filter(|_| known(name)) {
                metrics.push((name.to_string(), number));
            }
        }
        for (name, value) in &usage {
            if let Some(number) = value.number.filter(|_| known(name))
                && !fields.contains_key(name)
            {
                metrics.push((name.to_string(), number));
            }
        }
        answer.metrics = metrics;
        answer
    }
}

impl<'de> Deserialize<'de> for Top<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(TopVisitor)
    }
}

struct TopVisitor;

impl<'de> Visitor<'de> for TopVisitor {
    type Value = Top<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Top<'de>, A::Error> {
        let mut top = Top {
            fields: Values::with_capacity_and_hasher(FIELDS, RandomState::default()),
            ..Top::default()
        };
        while let Some(Key(key)) = map.next_key()? {
            if key == "response" {
                let response: Response = map.next_value()?;
                top.has_response = response.is_object;
                top.usage = response.usage;
                top.truncated = response.truncated;
                let number = response.number;
                top.fields.insert(key, Value { text: "", number });
                continue;
            }
            let raw = map.next_value::<Raw>()?.get();
            match key.as_ref() {
                "_ng_no_persist" => top.no_persist = is_truthy(raw),
                "_ng_failure_terminal" => top.failure_terminal = is_truthy(raw),
                MASK_SAMPLE => top.masked = is_truthy(raw),
                "ng_perf" => top.perf = raw.starts_with('{').then(|| raw.to_owned()),
                "_ng_failure_class" => top.failure_class = class_of(raw),
                _ => {}
            }
            top.fields.insert(key, Value::of(raw));
        }
        Ok(top)
    }
}

fn class_of(raw: &str) -> Option<String> {
    match raw {
        "null" => None,
        _ => Some(serde_json::from_str(raw).unwrap_or_else(|_| raw.to_owned())),
    }
}

#[derive(Default)]
struct Response<'a> {
    is_object: bool,
    usage: Values<'a>,
    truncated: Option<bool>,
    number: Option<Number>,
}

impl<'de> Deserialize<'de> for Response<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ResponseVisitor)
    }
}

/// Descends into an object only; the rest of the variants say what else JSON can hold here.
struct ResponseVisitor;

impl<'de> Visitor<'de> for ResponseVisitor {
    type Value = Response<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut response = Response {
            is_object: true,
            ..Response::default()
        };
        while let Some(Key(key)) = map.next_key()? {
            match key.as_ref() {
                "usage" => response.usage = map.next_value::<Usage>()?.0,
                "status" => {
                    let is_incomplete = map.next_value::<Raw>()?.get() == "\"incomplete\"";
                    response.truncated = Some(is_incomplete || response.truncated == Some(true));
                }
                "incomplete_details" if map.next_value::<Raw>()?.get() != "null" => {
                    response.truncated = Some(true);
                }
                "incomplete_details" => {}
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(response)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Response::default())
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Response {
            number: Some(Number::Integer(value.into())),
            ..Response::default()
        })
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Response {
            number: Some(Number::Integer(value)),
            ..Response::default()
        })
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        let number = i64::try_from(value).map_or(Number::Float(value as f64), Number::Integer);
        Ok(Response {
            number: Some(number),
            ..Response::default()
        })
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Response {
            number: Some(Number::Float(value)),
            ..Response::default()
        })
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(Response::default())
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Response::default())
    }
}

struct Usage<'a>(Values<'a>);

impl<'de> Deserialize<'de> for Usage<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Raw::deserialize(deserializer)?.get();
        if !raw.starts_with('{') {
            return Ok(Self(Values::default()));
        }
        let fields: Fields = serde_json::from_str(raw).map_err(serde::de::Error::custom)?;
        Ok(Self(fields.0))
    }
}

/// The fields of an object.
struct Fields<'a>(Values<'a>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Values::with_capacity_and_hasher(FIELDS, RandomState::default());
        while let Some(Key(key)) = map.next_key()? {
            fields.insert(key, Value::of(map.next_value::<Raw>()?.get()));
        }
        Ok(Fields(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(text: &str) -> Vec<(String, Number)> {
        AnswerFields::parse(text).unwrap().metrics
    }

    fn named(name: &str, number: Number) -> (String, Number) {
        (name.to_owned(), number)
    }

    #[test]
    fn numbers_of_the_top_and_of_usage_are_metrics_in_order() {
        let text = r#"{"turns": 3, "reward": 0.5, "ok": true, "text": "7", "list": [1],
            "_ng_task_index": 4, "_ng_rollout_index": 1,
            "response": {"output": [{"usage": 9}], "usage": {"turns": 8, "input_tokens": 12, "details": {"x": 1}}}}"#;
        assert_eq!(
            metrics(text),
            [
                named("turns", Number::Integer(8)),
                named("reward", Number::Float(0.5)),
                named("ok", Number::Integer(1)),
                named("input_tokens", Number::Integer(12)),
            ]
        );
    }

    #[test]
    fn the_last_of_two_equal_keys_counts_at_the_place_of_the_first() {
        let text = r#"{"a": "x", "b": 1, "a": 2, "b": "y"}"#;
        assert_eq!(metrics(text), [named("a", Number::Integer(2))]);
    }

    #[test]
    fn flags_follow_the_truth_of_python() {
        for (value, truthy) in [
            ("true", true),
            ("1", true),
            ("\"x\"", true),
            ("0", false),
            ("null", false),
            ("[]", false),
            ("{}", false),
            ("\"\"", false),
            ("\" \"", true),
            ("[ ]", false),
        ] {
            let text = format!(
                r#"{{"_ng_no_persist": {value}, "_ng_failure_terminal": {value}, "mask_sample": {value}}}"#
            );
            let fields = AnswerFields::parse(&text).unwrap();
            assert_eq!(
                [fields.no_persist, fields.failure_terminal, fields.masked],
                [truthy; 3],
                "{value}"
            );
        }
    }

    #[test]
    fn a_failure_class_counts_unless_it_is_null() {
        let class = |value: &str| {
            AnswerFields::parse(&format!(r#"{{"_ng_failure_class": {value}}}"#))
                .unwrap()
                .failure_class
        };
        assert_eq!(class("\"sandbox\""), Some("sandbox".to_owned()));
        assert_eq!(class("\"\""), Some(String::new()));
        assert_eq!(class("null"), None);
    }

    #[test]
    fn a_reward_that_is_no_number_is_no_reward() {
        for text in [
            r#"{}"#,
            r#"{"reward": null}"#,
            r#"{"reward": "1"}"#,
            r#"{"reward": 1e400}"#,
        ] {
            assert_eq!(AnswerFields::parse(text).unwrap().reward, None, "{text}");
        }
        assert_eq!(
            AnswerFields::parse(r#"{"reward": true}"#).unwrap().reward,
            Some(1.0)
        );
    }

    #[test]
    fn what_is_not_one_object_is_an_error() {
        for text in ["", "[]", "1", "{", r#"{"reward": NaN}"#, "{} {}", "<html>"] {
            assert!(AnswerFields::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_response_says_whether_it_was_cut_off() {
        for (response, truncated) in [
            (
                r#"{"status": "completed", "incomplete_details": null}"#,
                Some(false),
            ),
            (r#"{"status": "incomplete"}"#, Some(true)),
            (
                r#"{"incomplete_details": {"reason": "max_output_tokens"}, "status": "done"}"#,
                Some(true),
            ),
            (r#"{"incomplete_details": null}"#, None),
            ("7", None),
        ] {
            let fields = AnswerFields::parse(&format!(r#"{{"response": {response}}}"#));
            assert_eq!(fields.unwrap().truncated, truncated, "{response}");
        }
    }

    #[test]
    fn deep_nesting_is_skipped_without_recursion() {
        let deep = format!(
            r#"{{"deep": {}{}, "response": {{"o": {}{}}}, "reward": 1}}"#,
            "[".repeat(100_000),
            "]".repeat(100_000),
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        assert_eq!(AnswerFields::parse(&deep).unwrap().reward, Some(1.0));
    }
}
