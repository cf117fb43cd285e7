//! [`Repeats`]: how many rollouts each task gets, one number for all or a number per agent.
//!
//! Both the flag (`4`, `agent_a=32,_default=4`) and a configuration file (a number or a mapping) become this type, so that
//! every later step has numbers that are checked.

use std::collections::HashSet;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer};
use serde::ser::{Serialize, Serializer};
use serde_json::Value;

use super::fields::unexpected;
use crate::python::{repr_dict, repr_str};

/// The entry of [`Repeats::PerAgent`] for agents that have none of their own.
pub const DEFAULT_AGENT: &str = "_default";

/// The number of rollouts per task. Every number is at least 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Repeats {
    /// The same number for every task.
    All(u32),
    /// A number per agent name, in the order given; [`DEFAULT_AGENT`] stands for all unlisted agents.
    PerAgent(Vec<(String, u32)>),
}

impl Repeats {
    /// Creates one number for all tasks.
    ///
    /// # Errors
    /// `count` is below 1 or above [`u32::MAX`].
    pub fn all(count: i64) -> Result<Self, String> {
        if count < 1 {
            return Err(format!(
                "num_repeats must be >= 1, got {count}; give a positive whole number"
            ));
        }
        checked(count).map(Self::All)
    }

    /// Creates a number per agent name.
    ///
    /// # Errors
    /// An entry is below 1 (all such entries are listed) or above [`u32::MAX`].
    pub fn per_agent(entries: Vec<(String, i64)>) -> Result<Self, String> {
        let offenders: Vec<_> = entries.iter().filter(|(_, count)| *count < 1).collect();
        if !offenders.is_empty() {
            let offenders = repr_dict(offenders.iter().map(|(name, count)| (name, count)));
            return Err(format!(
                "num_repeats dict values must be >= 1, got {offenders}; leave an agent's tasks out of the input instead"
            ));
        }
        let entries = entries
            .into_iter()
            .map(|(name, count)| Ok((name, checked(count)?)))
            .collect::<Result<_, String>>()?;
        Ok(Self::PerAgent(entries))
    }

    /// Returns the number of rollouts per task of `agent`; `None` if it is neither listed nor covered by a default.
    pub fn for_agent(&self, agent: &str) -> Option<u32> {
        self.for_first(std::iter::once(agent))
    }

    /// Returns the number for the first of the names that is listed; `None` if none is and there is no default.
    pub fn for_first<'a>(&self, mut names: impl Iterator<Item = &'a str>) -> Option<u32> {
        match self {
            Self::All(count) => Some(*count),
            Self::PerAgent(entries) => {
                let find = |wanted: &str| {
                    entries
                        .iter()
                        .find(|(name, _)| name == wanted)
                        .map(|(_, count)| *count)
                };
                names.find_map(find).or_else(|| find(DEFAULT_AGENT))
            }
        }
    }

    /// Returns the listed agent names without [`DEFAULT_AGENT`], sorted by code point.
    pub fn listed(&self) -> Vec<&str> {
        let Self::PerAgent(entries) = self else {
            return Vec::new();
        };
        let mut names: Vec<&str> = entries
            .iter()
            .map(|(name, _)| name.as_str())
            .filter(|name| *name != DEFAULT_AGENT)
            .collect();
        names.sort_unstable();
        names
    }

    /// Returns the listed agent names that are not among `seen`, sorted by code point.
    pub fn unused(&self, seen: &HashSet<String>) -> Vec<&str> {
        let mut names = self.listed();
        names.retain(|name| !seen.contains(*name));
        names
    }
}

impl Default for Repeats {
    fn default() -> Self {
        Self::All(1)
    }
}

impl FromStr for Repeats {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if !text.contains('=') {
            return Self::all(whole_number(text, repr_str(text.trim()))?);
        }
        let mut entries: Vec<(String, i64)> = Vec::new();
        for entry in text
            .split(',')
            .map(str::trim)
            .filter(|entry| !entry.is_empty())
        {
            let named = entry
                .rsplit_once('=')
                .map(|(name, count)| (name.trim(), count));
            let Some((name, count)) = named.filter(|(name, _)| !name.is_empty()) else {
                return Err(not_a_number(&repr_str(entry)));
            };
            if entries.iter().any(|(known, _)| known == name) {
                let name = repr_str(name);
                return Err(format!(
                    "num_repeats names agent {name} twice; give each agent one number"
                ));
            }
            let count = whole_number(count, repr_str(count.trim()))?;
            entries.push((name.to_owned(), count));
        }
        Self::per_agent(entries)
    }
}

fn checked(count: i64) -> Result<u32, String> {
    u32::try_from(count).map_err(|_| too_many(&count.to_string()))
}

fn too_many(count: &str) -> String {
    format!("num_repeats must be <= {}, got {count}", u32::MAX)
}

fn not_a_number(shown: &str) -> String {
    format!(
        "num_repeats must be a whole number or a mapping of agent name to whole number, got {shown}; write 4 or \
         agent_a=32,agent_b=1,_default=4"
    )
}

/// Reads a whole number as users write it: `4`, `+4`, `4.0`, with or without spaces. Errors show `shown`.
fn whole_number(text: &str, shown: String) -> Result<i64, String> {
    let text = text.trim();
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_whole = !fraction.is_empty() && fraction.bytes().all(|digit| digit == b'0');
    match whole.parse::<i128>() {
        Ok(count) if is_whole => i64::try_from(count).map_err(|_| too_many(text)),
        _ => Err(not_a_number(&shown)),
    }
}

impl Serialize for Repeats {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All(count) => serializer.serialize_u32(*count),
            Self::PerAgent(entries) => {
                serializer.collect_map(entries.iter().map(|(name, count)| (name, count)))
            }
        }
    }
}

impl<'de> Deserialize<'de> for Repeats {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let repeats = match Value::deserialize(deserializer)? {
            Value::Null => return Ok(Self::default()),
            Value::Object(entries) => {
                let count = |count| whole_value(count, "a whole number of repeats");
                // The range is checked later: all entries below 1 are reported together.
                let entries = entries
                    .iter()
                    .map(|(name, value)| Ok((name.clone(), count(value)?)));
                Self::per_agent(entries.collect::<Result<_, D::Error>>()?)
            }
            other => {
                let expected = "a whole number, or a mapping of agent name to whole number";
                Self::all(whole_value(&other, expected)?)
            }
        };
        repeats.map_err(de::Error::custom)
    }
}

/// Reads a whole number from a file.
fn whole_value<E: de::Error>(value: &Value, expected: &str) -> Result<i64, E> {
    let number = match value {
        Value::Bool(truth) => Ok(i64::from(*truth)),
        Value::Number(number) => whole_number(&number.to_string(), number.to_string()),
        Value::String(text) => whole_number(text, repr_str(text.trim())),
        other => return Err(unexpected(other, expected)),
    };
    number.map_err(E::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_json(text: &str) -> Result<Repeats, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    fn per_agent(entries: &[(&str, u32)]) -> Repeats {
        Repeats::PerAgent(
            entries
                .iter()
                .map(|(name, count)| ((*name).to_owned(), *count))
                .collect(),
        )
    }

    #[test]
    fn a_number_in_any_spelling_is_for_all() {
        for text in ["4", "4.0", "\"4\"", "\" 4 \"", "4e0", "\"4.0\"", "\"+4\""] {
            assert_eq!(from_json(text), Ok(Repeats::All(4)), "{text}");
        }
        assert_eq!(from_json("null"), Ok(Repeats::All(1)));
        assert_eq!("4".parse(), Ok(Repeats::All(4)));
    }

    #[test]
    fn an_empty_mapping_covers_no_agent() {
        assert_eq!(from_json("{}").unwrap().for_agent("a"), None);
    }

    #[test]
    fn a_mapping_is_per_agent_and_the_default_covers_the_rest() {
        let repeats = from_json(r#"{"a": "32", "_default": 4.0, "b": 1}"#).unwrap();
        assert_eq!(repeats, per_agent(&[("a", 32), ("_default", 4), ("b", 1)]));
        assert_eq!(repeats.for_agent("a"), Some(32));
        assert_eq!(repeats.for_agent("other"), Some(4));
        assert_eq!(repeats.for_agent("_default"), Some(4));
        assert_eq!(repeats.listed(), ["a", "b"]);
        assert_eq!(repeats.unused(&HashSet::from(["b".to_owned()])), ["a"]);
        assert_eq!(per_agent(&[("a", 2)]).for_agent("b"), None);
    }

    #[test]
    fn the_flag_names_agents_and_numbers() {
        let repeats: Repeats = " agent_a=32, agent_b = 1 ,_default=4".parse().unwrap();
        assert_eq!(
            repeats,
            per_agent(&[("agent_a", 32), ("agent_b", 1), ("_default", 4)])
        );
        assert_eq!(
            "a=1,a=2".parse::<Repeats>(),
            Err("num_repeats names agent 'a' twice; give each agent one number".into())
        );
        assert_eq!("x=y=3".parse::<Repeats>(), Ok(per_agent(&[("x=y", 3)])));
    }

    #[test]
    fn numbers_below_one_are_refused_with_all_offenders() {
        let text = |result: Result<Repeats, String>| result.unwrap_err();
        assert!(text(from_json("0")).contains("num_repeats must be >= 1, got 0"));
        assert!(text(from_json("\"-2\"")).contains("num_repeats must be >= 1, got -2"));
        assert!(
            text(from_json(r#"{"a": 0, "b": 2, "c": -3}"#))
                .contains("num_repeats dict values must be >= 1, got {'a': 0, 'c': -3}")
        );
        assert!(text(from_json(r#"{"_default": 0}"#)).contains("got {'_default': 0}"));
        assert!(text(from_json(r#"{"it's": 0}"#)).contains(r#"got {"it's": 0}"#));
    }

    #[test]
    fn what_is_no_whole_number_is_refused() {
        for text in [
            "1.5",
            "\"x\"",
            "\"\"",
            "[1]",
            "{\"a\": null}",
            "{\"a\": 1.5}",
            "5000000000",
            "1e99",
            "\"1e3\"",
        ] {
            assert!(from_json(text).is_err(), "{text}");
        }
        assert_eq!("5000000000".parse::<Repeats>(), Err(too_many("5000000000")));
        assert_eq!(
            "99999999999999999999".parse::<Repeats>(),
            Err(too_many("99999999999999999999"))
        );
    }

    #[test]
    fn serialising_gives_what_deserialising_takes() {
        for repeats in [Repeats::All(3), per_agent(&[("b", 2), ("a", 1)])] {
            let text = serde_json::to_string(&repeats).unwrap();
            assert_eq!(from_json(&text), Ok(repeats));
        }
    }
}
