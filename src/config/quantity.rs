//! Quantities: times ([`Span`], [`Limit`]), sizes ([`Bytes`]), [`Concurrency`] and [`Shard`].
//!
//! Each prints a text that it reads again without loss, so that a printed configuration is a configuration.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use serde::de::{self, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Number, Value};

use super::fields::{count_of, read_as_text, unexpected, written_as_printed};

/// A time greater than zero: `90s`, `1h 30m`, `500ms`; a plain number is seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(Duration);

/// The longest time that something may take, or `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit(Option<Span>);

/// A size greater than zero: `128MiB` (2^20), `10GB` (10^9); a plain number is bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(u64);

const SPAN: &str = "a time greater than zero, such as 90s, 5m, 1h or a number of seconds";
const NONE: &str = "none";
const LIMIT: &str = "a time greater than zero, such as 90s, 5m, 1h or a number of seconds, or none";
const BYTES: &str = "a size greater than zero, such as 128MiB, 1GB or a number of bytes";

impl Span {
    /// Creates a span of whole seconds; zero becomes one second.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(if seconds == 0 { 1 } else { seconds }))
    }

    /// Creates a span of whole milliseconds; zero becomes one millisecond.
    pub const fn from_millis(milliseconds: u64) -> Self {
        let milliseconds = if milliseconds == 0 { 1 } else { milliseconds };
        Self(Duration::from_millis(milliseconds))
    }

    /// Returns the time.
    pub const fn duration(self) -> Duration {
        self.0
    }
}

impl Limit {
    /// The default for a rollout: longer than nearly all take, and short enough to notice an agent that never ends its
    /// answers.
    pub const ROLLOUT: Self = Self(Some(Span::from_secs(2 * 60 * 60)));

    /// Returns the time, if there is a limit.
    pub fn duration(self) -> Option<Duration> {
        self.0.map(Span::duration)
    }
}

impl Bytes {
    /// Creates a size in MiB (2^20 bytes); zero becomes one.
    pub const fn from_mib(mebibytes: u32) -> Self {
        Self((if mebibytes == 0 { 1 } else { mebibytes as u64 }) << 20)
    }

    /// Returns the size in bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the size in bytes as a `usize`, capped at its maximum.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let duration = match text.trim().parse::<f64>() {
            Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
            Err(_) => humantime::parse_duration(text.trim()).ok(),
        };
        let duration = duration.filter(|duration| !duration.is_zero());
        duration
            .map(Self)
            .ok_or_else(|| format!("`{text}` is not {SPAN}"))
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim() {
            NONE => Ok(Self(None)),
            other => match other.parse() {
                Ok(span) => Ok(Self(Some(span))),
                Err(_) => Err(format!("`{text}` is not {LIMIT}")),
            },
        }
    }
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim().parse::<ByteSize>() {
            Ok(size) if size.as_u64() > 0 => Ok(Self(size.as_u64())),
            _ => Err(format!("`{text}` is not {BYTES}")),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(span) => span.fmt(f),
            None => f.write_str(NONE),
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [
            ("GiB", 1 << 30),
            ("MiB", 1 << 20),
            ("KiB", 1 << 10),
            ("B", 1),
        ];
        let exact = units.iter().find(|(_, size)| self.0.is_multiple_of(*size));
        let (unit, size) = exact.unwrap_or(&("B", 1));
        write!(f, "{}{unit}", self.0 / size)
    }
}

/// Reads a text, or a number that `is_number` accepts.
fn text_or_number<T: FromStr<Err = String>, E: de::Error>(
    value: &Value,
    expected: &str,
    is_number: fn(&Number) -> bool,
) -> Result<T, E> {
    match value {
        Value::String(text) => text.parse().map_err(E::custom),
        Value::Number(number) if is_number(number) => number.to_string().parse().map_err(E::custom),
        other => Err(unexpected(other, expected)),
    }
}

fn is_time(number: &Number) -> bool {
    number.is_u64() || number.is_f64()
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_or_number(&Value::deserialize(deserializer)?, SPAN, is_time)
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            // Runs that were recorded before the default existed have `null`.
            Value::Null => Ok(Self(None)),
            value => text_or_number(&value, LIMIT, is_time),
        }
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_or_number(&Value::deserialize(deserializer)?, BYTES, Number::is_u64)
    }
}

read_as_text!(Shard);
written_as_printed!(Span, Limit, Bytes, Shard);

/// The most calls in flight: a number, or as many as the agent takes well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concurrency {
    /// This many; at least 1.
    Fixed(usize),
    /// Adapted while calling: more while latency and errors are good, fewer when they are not.
    Auto,
}

impl Concurrency {
    /// The most calls that `auto` allows.
    pub const MOST: usize = 4096;

    /// Returns the most calls that may ever be in flight.
    pub fn most(self) -> usize {
        match self {
            Self::Fixed(calls) => calls,
            Self::Auto => Self::MOST,
        }
    }
}

const CONCURRENCY: &str = "a whole number of at least 1, or auto";

impl FromStr for Concurrency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "auto" => Ok(Self::Auto),
            text => match text.parse() {
                Ok(calls) if calls >= 1 => Ok(Self::Fixed(calls)),
                _ => Err(format!("expected {CONCURRENCY}")),
            },
        }
    }
}

impl fmt::Display for Concurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(calls) => calls.fmt(f),
            Self::Auto => f.write_str("auto"),
        }
    }
}

impl Serialize for Concurrency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(calls) => calls.serialize(serializer),
            Self::Auto => serializer.serialize_str("auto"),
        }
    }
}

impl<'de> Deserialize<'de> for Concurrency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let Value::String(text) = &value else {
            return count_of(&value, CONCURRENCY).map(Self::Fixed);
        };
        let refuse = || de::Error::invalid_value(Unexpected::Str(text), &CONCURRENCY);
        text.parse().map_err(|_| refuse())
    }
}

/// The share of a sweep that one of several processes works on: `2/8` is the second of eight. Tasks are dealt out by
/// their index, so that all rollouts of a task are in one share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    index: u32,
    count: u32,
}

impl Shard {
    /// Returns the number of the share, from 1.
    pub fn index(self) -> u32 {
        self.index
    }

    /// Returns the number of shares.
    pub fn count(self) -> u32 {
        self.count
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (index, count) = text.trim().split_once('/')?;
            let shard = Self {
                index: index.parse().ok()?,
                count: count.parse().ok()?,
            };
            (1..=shard.count).contains(&shard.index).then_some(shard)
        };
        parse().ok_or_else(|| format!("`{text}` is not a shard, such as 2/8 (of 1/8 to 8/8)"))
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_any_unit_and_printed_as_they_can_be_read() {
        let read = |json: &str| serde_json::from_str::<Span>(json);
        for json in [
            "90",
            "90.0",
            "\"90\"",
            "\"90s\"",
            "\"1m 30s\"",
            "\" 1m30s \"",
        ] {
            assert_eq!(read(json).unwrap(), Span::from_secs(90), "{json}");
        }
        assert_eq!(Span::from_secs(6 * 3600).to_string(), "6h");
        for text in ["6h", "1m 30s", "1500ms", "0.25"] {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.to_string().parse(), Ok(span));
        }
        for json in [
            "0", "\"0s\"", "-1", "\"soon\"", "\"nan\"", "\"inf\"", "true", "1e300",
        ] {
            let message = read(json).unwrap_err().to_string();
            assert!(message.contains("a time greater than zero"), "{message}");
        }
    }

    #[test]
    fn a_limit_is_a_time_or_none() {
        let read = |json: &str| serde_json::from_str::<Limit>(json);
        let hour = Limit(Some(Span::from_secs(3600)));
        for (json, limit) in [
            ("\"1h\"", hour),
            ("3600", hour),
            ("3600.0", hour),
            ("\" none \"", Limit(None)),
            ("null", Limit(None)),
        ] {
            assert_eq!(read(json).unwrap(), limit, "{json}");
            let printed = serde_json::to_string(&limit).unwrap();
            assert_eq!(read(&printed).unwrap(), limit);
        }
        for json in ["0", "\"0\"", "-1", "\"never\"", "true"] {
            let message = read(json).unwrap_err().to_string();
            assert!(message.contains("or none"), "{message}");
        }
        // An agent's limit that is not set differs from `none`.
        let own = serde_json::from_str::<Option<Limit>>("null").unwrap();
        assert_eq!(own, None);
    }

    #[test]
    fn sizes_are_read_in_any_unit_and_printed_without_loss() {
        let read = |json: &str| serde_json::from_str::<Bytes>(json);
        for json in ["268435456", "\"256MiB\"", "\"256 mib\"", "\"268435456\""] {
            assert_eq!(read(json).unwrap(), Bytes::from_mib(256), "{json}");
        }
        assert_eq!(Bytes::from_mib(2048).to_string(), "2GiB");
        for text in ["1GB", "1000001", "3KiB", "1.5GiB"] {
            let size: Bytes = text.parse().unwrap();
            assert_eq!(size.to_string().parse(), Ok(size));
        }
        for json in [
            "0",
            "\"0\"",
            "-1",
            "1.5",
            "\"big\"",
            "\"\"",
            "\"10 parsecs\"",
        ] {
            let message = read(json).unwrap_err().to_string();
            assert!(message.contains("a size greater than zero"), "{message}");
        }
    }

    #[test]
    fn it_is_a_number_or_auto() {
        for (text, expected) in [
            ("auto", Some(Concurrency::Auto)),
            ("64", Some(Concurrency::Fixed(64))),
            ("0", None),
            ("many", None),
        ] {
            assert_eq!(text.parse().ok(), expected);
            assert_eq!(serde_yaml_ng::from_str(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn a_shard_is_one_of_several() {
        let shard: Shard = "2/8".parse().unwrap();
        assert_eq!((shard.index(), shard.count()), (2, 8));
        assert_eq!(shard.to_string(), "2/8");
        for text in ["0/8", "9/8", "1/0", "2", "a/b", "-1/2"] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
    }
}
