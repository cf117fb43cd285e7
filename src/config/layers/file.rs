//! The configuration file: TOML or YAML in, assignments with their lines out.

use std::path::Path;
use std::{fmt, fs};

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Number, Value};
use toml::de::{DeTable, DeValue};

use super::keys;
use super::tree::{Assignment, leaves};
use crate::config::{ConfigError, KeyPath, Origin};

/// Reads a file whose extension is `.toml`, `.yaml` or `.yml`.
pub(super) fn read(path: &Path) -> Result<Vec<Assignment>, ConfigError> {
    let parse = match path.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => from_toml,
        Some("yaml" | "yml") => from_yaml,
        _ => {
            return Err(ConfigError::FileFormat {
                path: path.to_owned(),
            });
        }
    };
    let text = fs::read_to_string(path).map_err(|source| ConfigError::ReadFile {
        path: path.to_owned(),
        source,
    })?;
    parse(path, text.strip_prefix('\u{feff}').unwrap_or(&text))
}

fn unparsed(path: &Path, format: &'static str, message: &str) -> ConfigError {
    ConfigError::ParseFile {
        path: path.to_owned(),
        format,
        message: message.trim_end().to_owned(),
    }
}

fn from_toml(path: &Path, text: &str) -> Result<Vec<Assignment>, ConfigError> {
    let broken = |message: String| unparsed(path, "TOML", &message);
    let spans = DeTable::parse(text).map_err(|error| broken(error.to_string()))?;
    let table: toml::Table = toml::from_str(text).map_err(|error| broken(error.to_string()))?;
    let value = from_toml_value(toml::Value::Table(table)).map_err(broken)?;
    assignments(path, value, |key| {
        toml_line(text, spans.get_ref(), key.keys())
    })
}

/// The line (1-based) of the key at the end of `path`.
fn toml_line(text: &str, table: &DeTable<'_>, path: &[String]) -> Option<usize> {
    let (first, rest) = path.split_first()?;
    let (key, value) = table.iter().find(|(key, _)| key.get_ref() == first)?;
    match value.get_ref() {
        _ if rest.is_empty() => Some(text.get(..key.span().start)?.matches('\n').count() + 1),
        DeValue::Table(below) => toml_line(text, below, rest),
        _ => None,
    }
}

fn from_toml_value(value: toml::Value) -> Result<Value, String> {
    Ok(match value {
        toml::Value::String(text) => Value::String(text),
        toml::Value::Integer(number) => Value::from(number),
        toml::Value::Float(number) => Number::from_f64(number)
            .map(Value::Number)
            .ok_or_else(|| format!("{number} cannot be sent as JSON; write a finite number"))?,
        toml::Value::Boolean(truth) => Value::Bool(truth),
        toml::Value::Datetime(time) => Value::String(time.to_string()),
        toml::Value::Array(items) => {
            let items = items.into_iter().map(from_toml_value);
            Value::Array(items.collect::<Result<_, _>>()?)
        }
        toml::Value::Table(table) => {
            let fields = table.into_iter();
            let fields = fields.map(|(key, value)| Ok((key, from_toml_value(value)?)));
            Value::Object(fields.collect::<Result<Map<_, _>, String>>()?)
        }
    })
}

fn from_yaml(path: &Path, text: &str) -> Result<Vec<Assignment>, ConfigError> {
    let broken = |message: String| unparsed(path, "YAML", &message);
    // By way of YAML's own value, which refuses a key that is given twice.
    let mut yaml: serde_yaml_ng::Value =
        serde_yaml_ng::from_str(text).map_err(|error| broken(error.to_string()))?;
    yaml.apply_merge()
        .map_err(|error| broken(error.to_string()))?;
    let value = serde_json::to_value(yaml).map_err(|error| broken(error.to_string()))?;
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Object(_) => assignments(path, value, |key| yaml_line(text, key.keys())),
        _ => Err(broken(
            "it holds no mapping; write one `key: value` per line".to_owned(),
        )),
    }
}

/// One assignment per innermost key, each with its line; `num_repeats` is one whole, since it replaces as one.
fn assignments(
    path: &Path,
    value: Value,
    line: impl Fn(&KeyPath) -> Option<usize>,
) -> Result<Vec<Assignment>, ConfigError> {
    let Value::Object(map) = value else {
        return Ok(Vec::new());
    };
    let origin = |key: &KeyPath| Origin::File {
        path: path.to_owned(),
        line: line(key),
    };
    let mut all = Vec::new();
    for (key, value) in map {
        let top = KeyPath::new([key]);
        let parts = match top.root() {
            "num_repeats" => vec![(top, value)],
            _ => leaves(top, value),
        };
        for (key, value) in parts {
            // The outermost wrong key is the one to name, with its own line.
            if let Some(wrong) = key
                .from_root()
                .find(|key| keys::kind(key, &Origin::Default).is_err())
            {
                keys::kind(&wrong, &origin(&wrong))?;
            }
            all.push(Assignment {
                origin: origin(&key),
                path: key,
                value,
            });
        }
    }
    Ok(all)
}

/// The text of the error that is made on purpose. The YAML parser tells lines only in errors.
const FOUND: &str = "the key was found here";

/// The line (1-based) on which the key at the end of `path` stands; `None` if it is not there.
pub(super) fn yaml_line(text: &str, path: &[String]) -> Option<usize> {
    let error = Below(path)
        .deserialize(serde_yaml_ng::Deserializer::from_str(text))
        .err()?;
    error
        .to_string()
        .contains(FOUND)
        .then(|| error.location().map(|location| location.line()))?
}

/// Looks for a path in the next mapping.
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
    use serde_json::json;

    fn read_as(name: &str, text: &str) -> Result<Vec<Assignment>, ConfigError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        read(&path)
    }

    fn summary(assignments: Vec<Assignment>) -> Vec<(String, Value, Option<usize>)> {
        assignments
            .into_iter()
            .map(|assignment| match assignment.origin {
                Origin::File { line, .. } => (assignment.path.to_string(), assignment.value, line),
                other => panic!("{other}"),
            })
            .collect()
    }

    #[test]
    fn toml_and_yaml_say_the_same_with_their_lines() {
        let toml = "concurrency = 8\n\n[num_repeats]\na = 2\n\n[agents.a]\nurl = \"http://h\"\n\
                    [responses_create_params]\ntemperature = 1.0\n";
        let yaml = "concurrency: 8\n\nnum_repeats:\n  a: 2\n\nagents: {a:\n  {url: http://h}}\n\
                    responses_create_params:\n  temperature: 1.0\n";
        let expected = vec![
            ("concurrency".to_owned(), json!(8), Some(1)),
            ("num_repeats".to_owned(), json!({"a": 2}), Some(3)),
            ("agents.a.url".to_owned(), json!("http://h"), Some(7)),
            (
                "responses_create_params.temperature".to_owned(),
                json!(1.0),
                Some(9),
            ),
        ];
        assert_eq!(summary(read_as("a.toml", toml).unwrap()), expected);
        assert_eq!(summary(read_as("a.yaml", yaml).unwrap()), expected);
        assert!(read_as("a.yml", "# nothing yet\n").unwrap().is_empty());
    }

    #[test]
    fn broken_files_name_the_file_and_the_place() {
        for (name, text, expected) in [
            ("a.toml", "a = 1\nb = = 2\n", "line 2"),
            ("a.toml", "a = 1\na = 2\n", "line 2"),
            ("a.toml", "[sim]\nx = inf\n", "finite"),
            ("a.yaml", "a: 1\nb: [\n", "line"),
            ("a.yaml", "a: 1\na: 2\n", "duplicate"),
            ("a.yaml", "- 1\n", "no mapping"),
            ("a.json", "{}", ".toml, .yaml or .yml"),
        ] {
            let message = read_as(name, text).unwrap_err().to_string();
            assert!(message.contains(expected), "{name} {text:?}: {message}");
            assert!(message.contains(name), "{message}");
        }
        let message = read(Path::new("/nowhere/a.toml")).unwrap_err().to_string();
        assert!(message.contains("/nowhere/a.toml") && message.contains("--config"));
    }

    #[test]
    fn nested_keys_are_found_on_their_lines() {
        let text = "# comment\nagents:\n  a:\n    url: http://h\n    wrong: 1\nlimit: [1]\n";
        let line = |path: &[&str]| {
            let path: Vec<String> = path.iter().map(|key| (*key).to_owned()).collect();
            yaml_line(text, &path)
        };
        assert_eq!(line(&["agents"]), Some(2));
        assert_eq!(line(&["agents", "a", "wrong"]), Some(5));
        assert_eq!(line(&["limit"]), Some(6));
        assert_eq!(line(&["limit", "x"]), None);
        assert_eq!(line(&["missing"]), None);
    }
}
