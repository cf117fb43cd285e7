//! The types of options: [`OptionValue`] checks the text of a flag, and the functions for serde read what a type by itself
//! would refuse or let pass.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use serde::de::{self, Unexpected};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::option_spec::{Check, Kind};
use super::{
    AgentKind, AgentSettings, Bytes, Cluster, Concurrency, Driver, GroupFailure, KeyPath, Limit,
    ModelApi, Repeats, Resources, RoutingMode, Rules, Secret, SeedField, ServerUrl, Shard, Span,
    Split, VariableName,
};
use crate::gym::GymChoice;

/// A type that options can have.
pub(crate) trait OptionValue {
    /// The form of values.
    const KIND: Kind;
    /// Checks the text of a flag; none for texts that may be misplaced secrets, which clap's errors would repeat.
    const CHECK: Option<Check>;
}

macro_rules! option_values {
    ($($kind:ident, $check:expr => $($type:ty),*;)*) => {
        $($(impl OptionValue for $type {
            const KIND: Kind = Kind::$kind;
            const CHECK: Option<Check> = $check;
        })*)*
    };
}

option_values! {
    Text, Some(parses::<Self>) => Span, Limit, Bytes, Shard, SeedField, Split, GymChoice, Cluster;
    Text, Some(any) => String, PathBuf, RoutingMode, AgentKind, ModelApi, Resources, Driver, Rules, GroupFailure;
    Text, None => VariableName, ServerUrl, Secret;
    Texts, Some(any) => Vec<String>;
    Texts, None => Vec<ServerUrl>;
    Scalar, Some(parses::<Self>) => Concurrency, f64, i64;
    Scalar, Some(counts::<Self>) => u32, u64, usize;
    Scalar, Some(any) => bool;
    Repeats, Some(parses::<Self>) => Repeats;
    Tree, Some(names) => Map<String, Value>, BTreeMap<String, Vec<String>>;
    Table, Some(names) => BTreeMap<String, String>, BTreeMap<String, AgentSettings>;
    Table, None => BTreeMap<String, VariableName>;
}

impl<T: OptionValue> OptionValue for Option<T> {
    const KIND: Kind = T::KIND;
    const CHECK: Option<Check> = T::CHECK;
}

pub(super) fn any(_: &str) -> Result<(), String> {
    Ok(())
}

pub(super) fn parses<T: FromStr<Err: Display>>(text: &str) -> Result<(), String> {
    let parsed = text.parse::<T>();
    parsed.map(|_| ()).map_err(|error| error.to_string())
}

fn counts<T: FromStr + Default + PartialEq>(text: &str) -> Result<(), String> {
    match text.parse::<T>() {
        Ok(count) if count != T::default() => Ok(()),
        _ => Err(format!("expected {COUNT}")),
    }
}

fn names(text: &str) -> Result<(), String> {
    name_and_value(text).map(|_| ())
}

/// Checks `NAME=VALUE`, where the value is of this type.
pub(super) fn named<T: OptionValue>(text: &str) -> Result<(), String> {
    match T::CHECK {
        Some(check) => check(name_and_value(text)?.1),
        None => Ok(()),
    }
}

/// Splits `NAME=VALUE`.
pub(crate) fn name_and_value(text: &str) -> Result<(&str, &str), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => Ok((name, value)),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

/// Splits `responses_create_params.KEY=VALUE`.
pub(crate) fn parameter_and_value(text: &str) -> Result<(KeyPath, &str), String> {
    let Some((key, value)) = text.split_once('=') else {
        return Err("write responses_create_params.KEY=VALUE".to_owned());
    };
    let path = KeyPath::parse(key).ok_or_else(|| format!("`{key}` has an empty part"))?;
    match path.keys() {
        [root, _, ..] if root == "responses_create_params" => Ok((path, value)),
        _ => Err(format!(
            "only request parameters can be set: write responses_create_params.KEY=VALUE; for other settings use \
             their flag or +{key}=..."
        )),
    }
}

/// Checks the path of NeMo Gym's main file; its other files are written next to it.
pub(crate) fn gym_output(text: &str) -> Result<(), String> {
    let stem = text.strip_suffix(".jsonl");
    let stem = stem.filter(|stem| !stem.contains("://") && !stem.is_empty());
    match stem {
        Some(stem) if !stem.ends_with('/') => Ok(()),
        _ => Err("write a path on a local disk such as results/rollouts.jsonl".to_owned()),
    }
}

/// Reads one value, or a list of values.
pub(super) fn one_or_many_of<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany<T> {
        Many(Vec<T>),
        One(T),
    }
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::Many(many) => many,
        OneOrMany::One(one) => vec![one],
    })
}

/// Reads one text, a list of texts, or null.
pub(super) fn many_or_none<'de, D: Deserializer<'de>>(reader: D) -> Result<Vec<String>, D::Error> {
    match Value::deserialize(reader)? {
        Value::Null => Ok(Vec::new()),
        texts => one_or_many_of(texts).map_err(de::Error::custom),
    }
}

/// Reads a value; null is the default.
pub(super) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Reads one path, or a list of paths.
pub(super) fn one_or_many<'de, D: Deserializer<'de>>(reader: D) -> Result<Vec<String>, D::Error> {
    match Value::deserialize(reader)? {
        Value::String(path) => Ok(vec![path]),
        list @ Value::Array(_) => serde_json::from_value(list).map_err(de::Error::custom),
        other => Err(unexpected(&other, "a path or a list of paths")),
    }
}

/// Reads the place of a run. Users of NeMo Gym name a `.jsonl` file; the run is a directory without that suffix.
pub(super) fn run_location<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    let location = text.as_deref().map(run_beside).transpose();
    let location = location.map_err(de::Error::custom)?;
    Ok(location.map(str::to_owned))
}

/// Returns the place of the run for a `.jsonl` file; any other text is the place itself.
pub(super) fn run_beside(text: &str) -> Result<&str, String> {
    let location = text.strip_suffix(".jsonl").unwrap_or(text);
    if location.is_empty() || location.ends_with(['/', '\\']) && location != text {
        return Err(format!(
            "`{text}` names no directory; write a path such as runs/first"
        ));
    }
    Ok(location)
}

/// Reads the names of HTTP headers, each with the environment variable that holds its value.
pub(super) fn headers<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, VariableName>, D::Error> {
    let headers = BTreeMap::<String, VariableName>::deserialize(deserializer)?;
    // RFC 9110, section 5.6.2: a field name is a token.
    let allowed = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    let is_wrong = |name: &&String| name.is_empty() || !name.chars().all(allowed);
    if let Some(name) = headers.keys().find(is_wrong) {
        let reason = format!("`{name}` is not the name of an HTTP header");
        return Err(de::Error::custom(reason));
    }
    Ok(headers)
}

/// Reads a whole number, or null.
pub(super) fn optional_whole<'de, D: Deserializer<'de>>(
    reader: D,
) -> Result<Option<i64>, D::Error> {
    let Some(value) = Option::<Value>::deserialize(reader)? else {
        return Ok(None);
    };
    let refuse = || de::Error::custom(format!("{value} is not a whole number of 64 bits"));
    value.as_i64().map(Some).ok_or_else(refuse)
}

const COUNT: &str = "a whole number of at least 1";

/// Reads a whole number of at least 1.
pub(super) fn count<'de, D: Deserializer<'de>, N: TryFrom<u64>>(reader: D) -> Result<N, D::Error> {
    count_of(&Value::deserialize(reader)?, COUNT)
}

/// Reads a whole number of at least 1, or null.
pub(super) fn optional_count<'de, D: Deserializer<'de>, N: TryFrom<u64>>(
    reader: D,
) -> Result<Option<N>, D::Error> {
    let value = Option::<Value>::deserialize(reader)?;
    value.map(|value| count_of(&value, COUNT)).transpose()
}

/// Returns the number, if it is whole, at least 1, and within `N`.
pub(super) fn count_of<N: TryFrom<u64>, E: de::Error>(
    value: &Value,
    expected: &str,
) -> Result<N, E> {
    let count = value.as_u64().filter(|count| *count >= 1);
    let count = count.and_then(|count| N::try_from(count).ok());
    count.ok_or_else(|| unexpected(value, expected))
}

/// Returns the error for a value that is not as `expected`.
pub(super) fn unexpected<E: de::Error>(value: &Value, expected: &str) -> E {
    let found = match value {
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(whole), _) => return E::invalid_value(Unexpected::Unsigned(whole), &expected),
            (_, Some(whole)) => Unexpected::Signed(whole),
            _ => Unexpected::Float(number.as_f64().unwrap_or_default()),
        },
        Value::Null => Unexpected::Unit,
        Value::Bool(truth) => Unexpected::Bool(*truth),
        Value::String(text) => Unexpected::Str(text),
        Value::Array(_) => Unexpected::Seq,
        Value::Object(_) => Unexpected::Map,
    };
    E::invalid_type(found, &expected)
}

macro_rules! optional_numbers {
    ($($name:ident: $expected:literal, $is_good:expr;)*) => {
        $(pub(super) fn $name<'de, D: Deserializer<'de>>(
            reader: D,
        ) -> Result<Option<f64>, D::Error> {
            optional_number(reader, $expected, $is_good)
        })*
    };
}

optional_numbers! {
    optional_price: "a price of zero or more", |price| price.is_finite() && price >= 0.0;
    optional_rate: "a number greater than zero", |rate| rate.is_finite() && rate > 0.0;
    // The bound is far beyond any run, and within what a clock can count.
    optional_seconds: "a number of seconds of at least 0", |seconds| (0.0..=1e12).contains(&seconds);
    optional_share: "a share from 0 to 1", |share| (0.0..=1.0).contains(&share);
}

fn optional_number<'de, D: Deserializer<'de>>(
    reader: D,
    expected: &str,
    is_good: fn(f64) -> bool,
) -> Result<Option<f64>, D::Error> {
    let Some(value) = Option::<Value>::deserialize(reader)? else {
        return Ok(None);
    };
    match value.as_f64().filter(|number| is_good(*number)) {
        Some(number) => Ok(Some(number)),
        None => Err(de::Error::custom(format!("{value} is not {expected}"))),
    }
}

/// Implements `Deserialize` by `FromStr`.
macro_rules! read_as_text {
    ($($type:ty),*) => {
        $(impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(de::Error::custom)
            }
        })*
    };
}

/// Implements `Serialize` by `Display`.
macro_rules! written_as_printed {
    ($($type:ty),*) => {
        $(impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        })*
    };
}
pub(super) use {read_as_text, written_as_printed};
