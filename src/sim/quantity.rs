//! Quantities as people write them: durations (`200ms`, `1.5s`) and sizes (`20KB`, `1MiB`), with
//! serde modules for fields that hold them.

use std::time::Duration;

use thiserror::Error;

/// A duration or a size that cannot be read.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum QuantityError {
    /// Not a number followed by a unit of time.
    #[error(
        "'{0}' is not a duration: write a number and a unit (us, ms, s, m, h), such as 200ms or 1.5s"
    )]
    Duration(String),
    /// Not a number followed by a unit of size.
    #[error(
        "'{0}' is not a size: write a number of bytes, or a number and a unit (KB, MB, GB, KiB, MiB, GiB), such as 20KB"
    )]
    Size(String),
}

/// Reads a duration: a number and `us`, `ms`, `s`, `m` or `h`; `0` needs no unit.
///
/// # Errors
/// There is no unit, an unknown one, or no finite number of at least 0 before it.
pub fn parse_duration(text: &str) -> Result<Duration, QuantityError> {
    let seconds = |number: f64, unit: &str| match unit {
        "us" => Some(number / 1e6),
        "ms" => Some(number / 1e3),
        "s" => Some(number),
        "m" => Some(number * 60.0),
        "h" => Some(number * 3600.0),
        "" if number == 0.0 => Some(0.0),
        _ => None,
    };
    split(text)
        .and_then(|(number, unit)| seconds(number, unit))
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| QuantityError::Duration(text.to_owned()))
}

/// Writes a duration as [`parse_duration`] reads it, exact to the microsecond.
pub fn format_duration(duration: Duration) -> String {
    let micros = duration.as_micros();
    match (micros % 1_000_000, micros % 1000) {
        (0, _) => format!("{}s", micros / 1_000_000),
        (_, 0) => format!("{}ms", micros / 1000),
        _ => format!("{micros}us"),
    }
}

/// Reads a size in bytes: a number, or a number and `B`, `KB`, `MB`, `GB` (powers of 1000), `KiB`,
/// `MiB` or `GiB` (powers of 1024), in any case.
///
/// # Errors
/// The unit is unknown, or there is no finite number of at least 0 before it.
pub fn parse_size(text: &str) -> Result<usize, QuantityError> {
    let factor = |unit: &str| match unit.to_ascii_lowercase().as_str() {
        "" | "b" => Some(1.0),
        "kb" | "k" => Some(1e3),
        "mb" | "m" => Some(1e6),
        "gb" | "g" => Some(1e9),
        "kib" => Some(1024.0),
        "mib" => Some(1024.0 * 1024.0),
        "gib" => Some(1024.0 * 1024.0 * 1024.0),
        _ => None,
    };
    split(text)
        .and_then(|(number, unit)| Some(number * factor(unit)?))
        .filter(|bytes| (0.0..=usize::MAX as f64).contains(bytes))
        .map(|bytes| bytes.round() as usize)
        .ok_or_else(|| QuantityError::Size(text.to_owned()))
}

fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    Some((number.parse().ok()?, unit.trim()))
}

/// Serde for a field of type [`Duration`].
pub(super) mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&super::format_duration(*duration))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        super::parse_duration(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// Serde for a size in bytes: a number, or text with a unit.
pub(super) mod size {
    use std::fmt;

    use serde::{Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(bytes: &usize, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(*bytes as u64)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
        from.deserialize_any(SizeVisitor)
    }

    struct SizeVisitor;

    impl de::Visitor<'_> for SizeVisitor {
        type Value = usize;

        fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
            formatter.write_str("a size, such as 1000 or \"20KB\"")
        }

        fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<usize, E> {
            usize::try_from(bytes).map_err(E::custom)
        }

        fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<usize, E> {
            usize::try_from(bytes).map_err(E::custom)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<usize, E> {
            super::parse_size(text).map_err(E::custom)
        }
    }
}

/// Serde for a size in bytes that may be missing.
pub(super) mod optional_size {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize)]
    struct Size(#[serde(with = "super::size")] usize);

    pub fn serialize<S: Serializer>(bytes: &Option<usize>, to: S) -> Result<S::Ok, S::Error> {
        bytes.serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<usize>, D::Error> {
        Ok(Option::<Size>::deserialize(from)?.map(|Size(bytes)| bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_a_number_and_a_unit() {
        for (text, micros) in [
            ("200ms", 200_000),
            ("1.5s", 1_500_000),
            ("2m", 120_000_000),
            ("7us", 7),
            ("0", 0),
            ("1 h", 3_600_000_000),
        ] {
            let duration = parse_duration(text).unwrap();
            assert_eq!(duration.as_micros(), micros, "{text}");
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
        for text in ["", "200", "ms", "-1s", "1 fortnight", "1e3s", "1.2.3s"] {
            assert_eq!(
                parse_duration(text),
                Err(QuantityError::Duration(text.into())),
                "{text}"
            );
        }
    }

    #[test]
    fn sizes_are_bytes_or_a_number_and_a_unit() {
        for (text, bytes) in [
            ("1000", 1000),
            ("20KB", 20_000),
            ("1.5 kb", 1500),
            ("2MiB", 2 << 20),
            ("40mb", 40_000_000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "KB", "-1", "20 parsecs"] {
            assert_eq!(
                parse_size(text),
                Err(QuantityError::Size(text.into())),
                "{text}"
            );
        }
    }
}
