//! [`Tree`]: the settings while layers are put on top of each other, with the origin of every value.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::keys::{self, EXPECTED_TABLE};
use crate::config::option_spec::Kind;
use crate::config::{ConfigError, KeyPath, MODEL_AGENT, Origin, Settings};

/// One value for one key, and its origin.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Assignment {
    pub path: KeyPath,
    pub value: Value,
    pub origin: Origin,
}

/// The values assigned so far, without defaults.
#[derive(Debug, Default)]
pub(super) struct Tree {
    values: Map<String, Value>,
    origins: BTreeMap<KeyPath, Origin>,
}

impl Tree {
    /// Assigns a value: mappings merge key by key, everything else replaces; `null` restores the default.
    pub(super) fn assign(&mut self, assignment: Assignment) -> Result<(), ConfigError> {
        let Assignment {
            path,
            value,
            origin,
        } = assignment;
        let kind = keys::kind(&path, &origin)?;
        let whole_tree = kind == Kind::Tree && path.keys().len() == 1;
        match (kind, &value) {
            (Kind::Tree, Value::Null) if whole_tree => {
                self.reset(path, origin);
                return Ok(());
            }
            (Kind::Tree, value) if whole_tree && !value.is_object() => {
                return Err(ConfigError::invalid(&path, &origin, EXPECTED_TABLE));
            }
            (Kind::Repeats, value) => {
                check(&path, value, &origin)?;
                self.remove(&path);
            }
            _ => {}
        }
        for (path, value) in leaves(path, value) {
            match keys::kind(&path, &origin)? {
                Kind::Tree => {}
                _ if value.is_null() => {
                    self.reset(path, origin.clone());
                    continue;
                }
                // An empty table sets nothing.
                Kind::Table if value.as_object().is_some_and(Map::is_empty) => continue,
                Kind::Table => return Err(ConfigError::invalid(&path, &origin, EXPECTED_TABLE)),
                _ => check(&path, &value, &origin)?,
            }
            self.insert(path, value, &origin);
        }
        Ok(())
    }

    /// The typed settings and the origins of all values that are not defaults.
    pub(super) fn finish(self) -> Result<(Settings, BTreeMap<KeyPath, Origin>), ConfigError> {
        let settings = serde_json::from_value(Value::Object(self.values)).map_err(|error| {
            ConfigError::Invalid {
                key: "the settings together".into(),
                origin: Origin::Default,
                reason: error.to_string(),
            }
        })?;
        Ok((settings, self.origins))
    }

    /// Names the agent of `--model-url` after its model, and returns its name. It keeps [`MODEL_AGENT`] if it has a kind,
    /// if it is called so elsewhere, or if the name is that of an agent with an address.
    pub(super) fn name_model(&mut self) -> String {
        let path = KeyPath::new(["agents", MODEL_AGENT]);
        let agent = |name: &str| self.values.get("agents")?.get(name);
        let field = |name: &str, key: &str| agent(name)?.get(key).filter(|value| !value.is_null());
        let model = field(MODEL_AGENT, "model").and_then(Value::as_str);
        let chosen = self.values.get("agent").and_then(Value::as_str);
        let repeats = self.values.get("num_repeats");
        let is_free = |model: &&str| {
            let names = [(MODEL_AGENT, "kind"), (model, "kind"), (model, "url")];
            !model.is_empty()
                && names
                    .into_iter()
                    .all(|(name, key)| field(name, key).is_none())
                && chosen.is_none_or(|chosen| chosen.is_empty() || chosen == *model)
                && repeats.is_none_or(|repeats| repeats.get(MODEL_AGENT).is_none())
        };
        let (Some(model), Some(own)) = (model.filter(is_free), agent(MODEL_AGENT)) else {
            return MODEL_AGENT.to_owned();
        };
        let (model, own) = (model.to_owned(), own.clone());
        let origins = self.origins.clone();
        self.remove(&path);
        for (place, value) in leaves(path, own) {
            let origin = origins.get(&place).unwrap_or(&Origin::Default);
            let below = place.keys().iter().skip(2).map(String::as_str);
            let keys = ["agents", &model].into_iter().chain(below);
            self.insert(KeyPath::new(keys), value, origin);
        }
        model
    }

    fn insert(&mut self, path: KeyPath, value: Value, origin: &Origin) {
        let Some((last, parents)) = path.keys().split_last() else {
            return;
        };
        let mut map = &mut self.values;
        for key in parents {
            let below = map.entry(key.as_str()).or_insert(Value::Null);
            if !below.is_object() {
                *below = Value::Object(Map::new());
            }
            let Value::Object(inner) = below else {
                return;
            };
            map = inner;
        }
        let empty = value.as_object().is_some_and(Map::is_empty);
        if empty && map.get(last).is_some_and(Value::is_object) {
            return;
        }
        map.insert(last.clone(), value);
        self.origins
            .retain(|known, _| !known.is_within(&path) && !path.is_within(known));
        self.origins.insert(path, origin.clone());
    }

    fn reset(&mut self, path: KeyPath, origin: Origin) {
        self.remove(&path);
        self.origins.insert(path, origin);
    }

    fn remove(&mut self, path: &KeyPath) {
        self.origins.retain(|known, _| !known.is_within(path));
        let Some((last, parents)) = path.keys().split_last() else {
            return;
        };
        let mut map = &mut self.values;
        for key in parents {
            let Some(Value::Object(below)) = map.get_mut(key) else {
                return;
            };
            map = below;
        }
        map.shift_remove(last);
    }
}

/// The values at the ends of nested mappings; an empty mapping is an end, and so is anything that is no mapping.
pub(super) fn leaves(path: KeyPath, value: Value) -> Vec<(KeyPath, Value)> {
    match value {
        Value::Object(map) if !map.is_empty() => map
            .into_iter()
            .flat_map(|(key, value)| leaves(path.child(&key), value))
            .collect(),
        value => vec![(path, value)],
    }
}

/// Checks a value by the type of its setting.
fn check(path: &KeyPath, value: &Value, origin: &Origin) -> Result<(), ConfigError> {
    let whole = path.keys().iter().rev().fold(value.clone(), |below, key| {
        Value::Object(Map::from_iter([(key.clone(), below)]))
    });
    let read = serde_json::from_value::<Settings>(whole);
    read.map(|_| ())
        .map_err(|error| ConfigError::invalid(path, origin, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn assigned(assignments: &[(&str, Value)]) -> Result<Tree, ConfigError> {
        let mut tree = Tree::default();
        for (position, (path, value)) in assignments.iter().enumerate() {
            tree.assign(Assignment {
                path: KeyPath::parse(path).unwrap(),
                value: value.clone(),
                origin: Origin::Flag(position.to_string()),
            })?;
        }
        Ok(tree)
    }

    fn origins(tree: &Tree) -> Vec<String> {
        tree.origins
            .iter()
            .map(|(path, origin)| format!("{path} {origin}"))
            .collect()
    }

    #[test]
    fn mappings_merge_and_the_rest_replaces() {
        let tree = assigned(&[
            (
                "responses_create_params",
                json!({"a": 1, "b": {"c": [1], "d": null}}),
            ),
            ("responses_create_params", json!({"b": {"c": [2]}, "e": {}})),
            ("responses_create_params.a.f", json!(3)),
            ("num_repeats", json!({"x": 1, "y": 2})),
            ("num_repeats", json!({"z": 3})),
            ("num_repeats.w", json!(4)),
        ])
        .unwrap();
        assert_eq!(
            Value::Object(tree.values.clone()),
            json!({
                "responses_create_params": {"a": {"f": 3}, "b": {"c": [2], "d": null}, "e": {}},
                "num_repeats": {"z": 3, "w": 4},
            })
        );
        assert_eq!(
            origins(&tree),
            [
                "num_repeats.w 5",
                "num_repeats.z 4",
                "responses_create_params.a.f 2",
                "responses_create_params.b.c 1",
                "responses_create_params.b.d 0",
                "responses_create_params.e 1",
            ]
        );
    }

    #[test]
    fn null_restores_the_default_and_its_origin_is_kept() {
        let tree = assigned(&[
            ("agents.a", json!({"url": "http://h", "concurrency": 2})),
            ("agents", json!({"a": {"concurrency": null}, "b": null})),
            ("limit", json!(3)),
            ("limit", json!(null)),
            ("limit", json!(null)),
        ])
        .unwrap();
        assert_eq!(
            origins(&tree),
            [
                "agents.a.concurrency 1",
                "agents.a.url 0",
                "agents.b 1",
                "limit 4"
            ]
        );
        let (settings, _) = tree.finish().unwrap();
        assert_eq!(settings.limit, None);
        assert_eq!(settings.agents["a"].concurrency, None);
    }

    #[test]
    fn a_wrong_value_names_its_key_and_origin() {
        for (path, value, expected) in [
            ("concurrency", json!("many"), "`concurrency` (0)"),
            (
                "agents",
                json!({"a": {"url": "ftp://h"}}),
                "`agents.a.url` (0)",
            ),
            (
                "agents",
                json!({"a": {"url": "http://u:p@h"}}),
                "--bearer-token-env",
            ),
            ("agents", json!({"a": 1}), "`agents.a` (0)"),
            (
                "agents",
                json!({"a": {"headers_env": "x"}}),
                "expected a mapping",
            ),
            ("headers_env", json!("Bearer sk-1"), "expected a mapping"),
            (
                "headers_env",
                json!({"X": {"Y": "Z"}}),
                "nothing can stand below",
            ),
            ("num_repeats", json!({"a": 0, "b": -1}), "{'a': 0, 'b': -1}"),
            ("sim", json!(1), "expected a mapping"),
            ("resume", json!("maybe"), "expected a boolean"),
        ] {
            let message = assigned(&[(path, value)]).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
            assert!(
                !message.contains("sk-1") && !message.contains("u:p"),
                "{message}"
            );
        }
    }
}
