//! [`Repeats`] in configuration files and in `run.json`: a number, or a mapping of agent name to number.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::{Repeats, from_float, from_unsigned, whole_number};

impl Serialize for Repeats {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All(count) => serializer.serialize_u32(*count),
            Self::PerAgent(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (name, count) in entries {
                    map.serialize_entry(name, count)?;
                }
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Repeats {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RepeatsVisitor)
    }
}

struct RepeatsVisitor;

impl<'de> Visitor<'de> for RepeatsVisitor {
    type Value = Repeats;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number, or a mapping of agent name to whole number")
    }

    fn visit_bool<E: de::Error>(self, count: bool) -> Result<Repeats, E> {
        Repeats::all(i64::from(count)).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, count: i64) -> Result<Repeats, E> {
        Repeats::all(count).map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, count: u64) -> Result<Repeats, E> {
        from_unsigned(count)
            .and_then(Repeats::all)
            .map_err(E::custom)
    }

    fn visit_f64<E: de::Error>(self, count: f64) -> Result<Repeats, E> {
        from_float(count).and_then(Repeats::all).map_err(E::custom)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Repeats, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_unit<E: de::Error>(self) -> Result<Repeats, E> {
        Ok(Repeats::default())
    }

    fn visit_none<E: de::Error>(self) -> Result<Repeats, E> {
        Ok(Repeats::default())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Repeats, D::Error> {
        Repeats::deserialize(deserializer)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Repeats, A::Error> {
        let mut entries: Vec<(String, i64)> = Vec::new();
        while let Some((name, WholeNumber(count))) = map.next_entry::<String, WholeNumber>()? {
            match entries.iter_mut().find(|(known, _)| *known == name) {
                Some(entry) => entry.1 = count,
                None => entries.push((name, count)),
            }
        }
        Repeats::per_agent(entries).map_err(de::Error::custom)
    }
}

/// One value of the mapping, before its range is checked: all offenders are to be reported together.
struct WholeNumber(i64);

impl<'de> Deserialize<'de> for WholeNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WholeNumberVisitor)
    }
}

struct WholeNumberVisitor;

impl Visitor<'_> for WholeNumberVisitor {
    type Value = WholeNumber;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number of repeats")
    }

    fn visit_bool<E: de::Error>(self, count: bool) -> Result<WholeNumber, E> {
        Ok(WholeNumber(i64::from(count)))
    }

    fn visit_i64<E: de::Error>(self, count: i64) -> Result<WholeNumber, E> {
        Ok(WholeNumber(count))
    }

    fn visit_u64<E: de::Error>(self, count: u64) -> Result<WholeNumber, E> {
        from_unsigned(count).map(WholeNumber).map_err(E::custom)
    }

    fn visit_f64<E: de::Error>(self, count: f64) -> Result<WholeNumber, E> {
        from_float(count).map(WholeNumber).map_err(E::custom)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<WholeNumber, E> {
        whole_number(text).map(WholeNumber).map_err(E::custom)
    }
}
