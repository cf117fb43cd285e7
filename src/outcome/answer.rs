//! [`Answer`]: an agent's answer, and [`AnswerFields`], its numbers and flags. One pass over the text finds
//! them, and builds no other value.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use foldhash::fast::RandomState;
use indexmap::IndexMap;
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::json::write_quoted;
use crate::python::is_truthy;

/// A field of an answer, by which an environment says that the reward is not meaningful for the agent.
pub const MASK_SAMPLE: &str = "mask_sample";

/// An answer that counts as a rollout.
#[derive(Debug)]
pub struct Answer {
    /// The whole body: one JSON object. Invalid UTF-8 is refused when it becomes a row.
    pub body: Bytes,
    /// The numbers and flags in it.
    pub fields: AnswerFields,
}

impl Answer {
    /// Parses an answer.
    ///
    /// # Errors
    /// The text is not one JSON object.
    pub fn parse(text: String) -> Result<Self, serde_json::Error> {
        Ok(Self {
            fields: AnswerFields::parse(&text)?,
            body: Bytes::from(text),
        })
    }
}

/// The fields of an answer that the collector itself uses.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct AnswerFields {
    /// Every numeric or boolean field at the top and in `response.usage`, in the order of first appearance. A field of
    /// `usage` wins over one of the same name at the top, and keeps its place. The two index keys are left out.
    pub metrics: Vec<(String, MetricValue)>,
    /// Top-level `reward`, if it is a number or a boolean.
    pub reward: Option<f64>,
    /// `usage.input_tokens`, or `usage.prompt_tokens`.
    pub input_tokens: Option<i64>,
    /// `usage.output_tokens`, or `usage.completion_tokens`.
    pub output_tokens: Option<i64>,
    /// `usage.total_tokens`.
    pub total_tokens: Option<i64>,
    /// Whether `_ng_no_persist` is truthy: the agent asks for the answer to be forgotten.
    pub no_persist: bool,
    /// `_ng_failure_class`, if present and not null: the attempt failed.
    pub failure_class: Option<String>,
    /// Whether `_ng_failure_terminal` is truthy: the agent asks for no further attempt.
    pub failure_terminal: bool,
    /// Whether [`MASK_SAMPLE`] is truthy.
    pub masked: bool,
    /// `ng_perf`, if it is an object: NeMo Gym's measurements of the rollout's turns and tokens.
    pub perf: Option<String>,
    /// Whether `response` is an object.
    pub has_response: bool,
    /// Whether the response was cut off: its `status` is `incomplete`, or it has `incomplete_details`. None if it has
    /// neither a status nor details.
    pub truncated: Option<bool>,
    /// The numbers of the rollout as a JSON object: the unchanged reward, then every other number or boolean of
    /// `response.usage` and of the top level, as they are written. Of two fields of one name the top-level one wins, at
    /// the place of the first; for the reward, the one of `usage` wins. Booleans become 0 or 1, except a boolean reward.
    /// A field `rollout_id` comes first.
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

/// A number or boolean of an answer. Booleans count as the integers 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MetricValue {
    /// Fits 64 bits, signed.
    Integer(i64),
    /// Anything else, rounded to 64 bits.
    Float(f64),
}

impl MetricValue {
    /// Returns the value as a float, rounded if it is an integer beyond 2^53.
    pub fn as_f64(self) -> f64 {
        match self {
            Self::Integer(value) => value as f64,
            Self::Float(value) => value,
        }
    }

    /// Returns the value, if it is an integer.
    pub fn as_i64(self) -> Option<i64> {
        match self {
            Self::Integer(value) => Some(value),
            Self::Float(_) => None,
        }
    }

    fn of(text: &str) -> Option<Self> {
        match text.as_bytes().first()? {
            b't' => Some(Self::Integer(1)),
            b'f' => Some(Self::Integer(0)),
            b'-' | b'0'..=b'9' => match text.parse::<i64>() {
                Ok(value) => Some(Self::Integer(value)),
                Err(_) => serde_json::from_str(text).ok().map(Self::Float),
            },
            _ => None,
        }
    }
}

#[derive(Deserialize, PartialEq, Eq, Hash)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// The text of a value: a long string is skipped instead of unescaped.
type Raw<'a> = &'a RawValue;

/// A value as it is written, and as a number.
#[derive(Debug, Clone, Copy, Default)]
struct Value<'a> {
    text: &'a str,
    number: Option<MetricValue>,
}

impl<'a> Value<'a> {
    fn of(text: &'a str) -> Self {
        let number = MetricValue::of(text);
        Self { text, number }
    }
}

/// Values by name, in order. The last of two values with one name counts, at the place of the first.
type Values<'a> = IndexMap<Cow<'a, str>, Value<'a>, RandomState>;

/// Most answers have fewer fields than this.
const FIELDS: usize = 16;

/// An answer while it is read.
#[derive(Default)]
struct Top<'a> {
    fields: Values<'a>,
    usage: Values<'a>,
    answer: AnswerFields,
}

impl Top<'_> {
    fn into_fields(self) -> AnswerFields {
        let Self {
            fields,
            usage,
            mut answer,
        } = self;
        let in_usage = |names: [&str; 2]| {
            let number = names.iter().find_map(|name| usage.get(*name)?.number);
            number.map(|number| number.as_i64().unwrap_or_else(|| number.as_f64() as i64))
        };
        let reward = fields.get("reward").and_then(|value| value.number);
        answer.reward = reward.map(MetricValue::as_f64);
        answer.input_tokens = in_usage(["input_tokens", "prompt_tokens"]);
        answer.output_tokens = in_usage(["output_tokens", "completion_tokens"]);
        answer.total_tokens = in_usage(["total_tokens", "total_tokens"]);
        answer.info = info(&fields, &usage);
        let both = fields.iter().map(|(name, value)| {
            let number = usage.get(name).map_or(value.number, |value| value.number);
            (name, number)
        });
        let rest = usage.iter().filter(|(name, _)| !fields.contains_key(*name));
        let all = both.chain(rest.map(|(name, value)| (name, value.number)));
        answer.metrics.reserve(fields.len() + usage.len());
        answer.metrics.extend(all.filter_map(|(name, number)| {
            let is_index = name == "_ng_task_index" || name == "_ng_rollout_index";
            number
                .filter(|_| !is_index)
                .map(|number| (name.to_string(), number))
        }));
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
                top.answer.has_response = response.is_object;
                top.usage = response.usage;
                top.answer.truncated = response.truncated;
                let number = response.number;
                top.fields.insert(key, Value { text: "", number });
                continue;
            }
            let raw = map.next_value::<Raw>()?.get();
            match key.as_ref() {
                "_ng_no_persist" => top.answer.no_persist = is_truthy(raw),
                "_ng_failure_terminal" => top.answer.failure_terminal = is_truthy(raw),
                MASK_SAMPLE => top.answer.masked = is_truthy(raw),
                "ng_perf" => top.answer.perf = raw.starts_with('{').then(|| raw.to_owned()),
                "_ng_failure_class" => top.answer.failure_class = class_of(raw),
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
    number: Option<MetricValue>,
}

impl<'de> Deserialize<'de> for Response<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ResponseVisitor)
    }
}

/// Visits `response`. It descends only into an object; the other methods accept all other JSON values.
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
                "usage" => {
                    response.usage = fields_of(map.next_value()?).map_err(A::Error::custom)?;
                }
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
        Ok(Response::number(MetricValue::Integer(value.into())))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Response::number(MetricValue::Integer(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        let number =
            i64::try_from(value).map_or(MetricValue::Float(value as f64), MetricValue::Integer);
        Ok(Response::number(number))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Response::number(MetricValue::Float(value)))
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(Response::default())
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Response::default())
    }
}

impl Response<'_> {
    fn number(number: MetricValue) -> Self {
        Self {
            number: Some(number),
            ..Self::default()
        }
    }
}

/// Returns the fields of an object. Any other value has none.
fn fields_of(raw: Raw<'_>) -> Result<Values<'_>, serde_json::Error> {
    if !raw.get().starts_with('{') {
        return Ok(Values::default());
    }
    let fields: IndexMap<Key, Raw, RandomState> = serde_json::from_str(raw.get())?;
    let fields = fields.into_iter();
    Ok(fields
        .map(|(Key(name), value)| (name, Value::of(value.get())))
        .collect())
}

/// The top-level fields that are not copied into `info` as numbers, or that have a place of their own.
const OWN: [&str; 4] = ["reward", "response", "_ng_task_index", "_ng_rollout_index"];

/// Returns [`AnswerFields::info`].
fn info(fields: &Values<'_>, usage: &Values<'_>) -> String {
    let (size, hash) = (fields.len() + usage.len(), RandomState::default());
    let mut numbers: IndexMap<&str, Cow<'_, str>, _> =
        IndexMap::with_capacity_and_hasher(size, hash);
    if let Some(reward) = fields.get("reward") {
        let text = Cow::Borrowed(reward.text);
        numbers.insert("reward", exact(reward.text).unwrap_or(text));
    }
    let top = fields
        .iter()
        .filter(|(name, _)| !OWN.contains(&name.as_ref()));
    for (name, value) in usage.iter().chain(top) {
        if let Some(number) = as_number(value.text) {
            numbers.insert(name, number);
        }
    }
    if let Some(id) = numbers.get_index_of("rollout_id") {
        numbers.move_index(id, 0);
    }
    let mut text = String::with_capacity(32 * size + 2);
    for (name, number) in &numbers {
        text.push(if text.is_empty() { '{' } else { ',' });
        write_quoted(name, &mut text);
        text.push(':');
        text.push_str(number);
    }
    text.push_str(if text.is_empty() { "{}" } else { "}" });
    text
}

/// Returns a number as it is written, and a boolean as 0 or 1.
fn as_number(value: &str) -> Option<Cow<'_, str>> {
    match value {
        "true" => Some("1".into()),
        "false" => Some("0".into()),
        _ => exact(value),
    }
}

/// Returns a number as it is written. Integers beyond 64 bits become floats.
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
    use super::*;

    fn metrics(text: &str) -> Vec<(String, MetricValue)> {
        AnswerFields::parse(text).unwrap().metrics
    }

    fn named(name: &str, number: MetricValue) -> (String, MetricValue) {
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
                named("turns", MetricValue::Integer(8)),
                named("reward", MetricValue::Float(0.5)),
                named("ok", MetricValue::Integer(1)),
                named("input_tokens", MetricValue::Integer(12)),
            ]
        );
    }

    #[test]
    fn the_last_of_two_equal_keys_counts_at_the_place_of_the_first() {
        let text = r#"{"a": "x", "b": 1, "a": 2, "b": "y"}"#;
        assert_eq!(metrics(text), [named("a", MetricValue::Integer(2))]);
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
