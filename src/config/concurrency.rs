//! [`Concurrency`]: how many calls may be in flight.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Calls in flight at most: a number, or as many as the agent takes well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concurrency {
    /// This many; at least 1.
    Fixed(usize),
    /// Found out while calling: more while latency and errors are good, fewer when they are not.
    Auto,
}

impl Concurrency {
    /// What `auto` goes up to.
    pub const MOST: usize = 4096;

    /// Calls in flight that there can be at the very most.
    pub fn most(self) -> usize {
        match self {
            Self::Fixed(calls) => calls,
            Self::Auto => Self::MOST,
        }
    }
}

const EXPECTED: &str = "a whole number of at least 1, or auto";

impl FromStr for Concurrency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "auto" => Ok(Self::Auto),
            text => match text.parse() {
                Ok(calls) if calls >= 1 => Ok(Self::Fixed(calls)),
                _ => Err(format!("expected {EXPECTED}")),
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
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Concurrency;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }

            fn visit_u64<E: de::Error>(self, calls: u64) -> Result<Concurrency, E> {
                let unexpected = || E::invalid_value(de::Unexpected::Unsigned(calls), &self);
                match usize::try_from(calls) {
                    Ok(calls) if calls >= 1 => Ok(Concurrency::Fixed(calls)),
                    _ => Err(unexpected()),
                }
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Concurrency, E> {
                text.parse()
                    .map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
