//! The line of a key in a YAML file. The parser tells lines only in its errors, so an error is made at the key.

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use std::fmt;

/// How the error that was made on purpose is told from real ones.
const FOUND: &str = "the key was found here";

/// The line (1-based) on which the key at the end of `path` stands; `None` if it is not there.
pub(super) fn line_of(text: &str, path: &[String]) -> Option<usize> {
    let error = Below(path)
        .deserialize(serde_yaml_ng::Deserializer::from_str(text))
        .err()?;
    error
        .to_string()
        .contains(FOUND)
        .then(|| error.location().map(|location| location.line()))?
}

/// Looks for the path in the mapping that comes next.
struct Below<'a>(&'a [String]);

impl<'de> DeserializeSeed<'de> for Below<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Below<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((first, rest)) = self.0.split_first() else {
            return Ok(());
        };
        let key = Key {
            wanted: first,
            last: rest.is_empty(),
        };
        while let Some(matches) = map.next_key_seed(key)? {
            if matches {
                map.next_value_seed(Below(rest))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct Key<'a> {
    wanted: &'a str,
    last: bool,
}

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: de::Error>(self, key: &str) -> Result<bool, E> {
        match (key == self.wanted, self.last) {
            (true, true) => Err(E::custom(FOUND)),
            (matches, _) => Ok(matches),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_keys_are_found_on_their_lines() {
        let text = "# comment\nagents:\n  a:\n    url: http://h\n    wrong: 1\nlimit: [1]\n";
        let line = |path: &[&str]| {
            let path: Vec<String> = path.iter().map(|key| (*key).to_owned()).collect();
            line_of(text, &path)
        };
        assert_eq!(line(&["agents"]), Some(2));
        assert_eq!(line(&["agents", "a", "wrong"]), Some(5));
        assert_eq!(line(&["limit"]), Some(6));
        assert_eq!(line(&["limit", "x"]), None);
        assert_eq!(line(&["missing"]), None);
    }
}
