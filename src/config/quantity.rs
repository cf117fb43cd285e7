//! [`Span`], [`Limit`] and [`Bytes`]: a time, a time limit and a size as people write them.
//!
//! All print as they can be read again, without loss, so that a printed configuration is a configuration.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A time greater than zero: `90s`, `1h 30m`, `500ms`; a plain number is seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(Duration);

/// A [`Span`] that something may take, or `none`.
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
    /// A span of whole seconds; zero becomes one second.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(if seconds == 0 { 1 } else { seconds }))
    }

    /// A span of whole milliseconds; zero becomes one millisecond.
    pub const fn from_millis(milliseconds: u64) -> Self {
        Self(Duration::from_millis(if milliseconds == 0 {
            1
        } else {
            milliseconds
        }))
    }

    /// The time.
    pub const fn duration(self) -> Duration {
        self.0
    }

    fn from_number(seconds: f64) -> Result<Self, String> {
        Duration::try_from_secs_f64(seconds)
            .ok()
            .filter(|duration| !duration.is_zero())
            .map(Self)
            .ok_or_else(|| format!("`{seconds}` is not {SPAN}"))
    }
}

impl Limit {
    /// What a rollout may take unless somebody says otherwise: longer than nearly all do, and short enough that an
    /// agent which never ends its answers is noticed.
    pub const ROLLOUT: Self = Self(Some(Span::from_secs(2 * 60 * 60)));

    /// The time, if there is a limit.
    pub fn duration(self) -> Option<Duration> {
        self.0.map(Span::duration)
    }
}

impl Bytes {
    /// A size in MiB (2^20 bytes); zero becomes one.
    pub const fn from_mib(mebibytes: u32) -> Self {
        Self((if mebibytes == 0 { 1 } else { mebibytes as u64 }) << 20)
    }

    /// The size in bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The size in bytes as an address; the largest one where it is larger than memory could be.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    fn from_number(bytes: u64) -> Result<Self, String> {
        match bytes {
            0 => Err(format!("`0` is not {BYTES}")),
            _ => Ok(Self(bytes)),
        }
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(seconds) = text.trim().parse::<f64>() {
            return Self::from_number(seconds);
        }
        match humantime::parse_duration(text.trim()) {
            Ok(duration) if !duration.is_zero() => Ok(Self(duration)),
            _ => Err(format!("`{text}` is not {SPAN}")),
        }
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
        let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        match units
            .iter()
            .find(|(_, factor)| self.0.is_multiple_of(*factor))
        {
            Some((unit, factor)) => write!(f, "{}{unit}", self.0 / factor),
            None => write!(f, "{}B", self.0),
        }
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Span;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(SPAN)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<Span, E> {
                Span::from_number(seconds as f64).map_err(E::custom)
            }

            fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<Span, E> {
                Span::from_number(seconds).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Limit;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(LIMIT)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Limit, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<Limit, E> {
                self.visit_f64(seconds as f64)
            }

            fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<Limit, E> {
                self.visit_str(&seconds.to_string())
            }

            /// Runs that were recorded before there was a default say `null`.
            fn visit_unit<E: de::Error>(self) -> Result<Limit, E> {
                Ok(Limit(None))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(BYTES)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Bytes, E> {
                Bytes::from_number(bytes).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
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
        // A limit of one agent that is not set is another thing than none.
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
}
