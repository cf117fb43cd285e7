//! `+key=value` and `++key=value`: overrides with our own names or NeMo Gym's.

use serde_json::Value;

use super::keys::{self, KEYS, Kind, Source};
use super::nemo_gym::{self, Meaning};
use super::tree::Assignment;
use super::{ConfigError, KeyPath, Origin, ServerUrl, hydra};

/// Reads overrides one after the other; host and port of the head server are remembered in between.
#[derive(Debug)]
pub(super) struct Overrides {
    host: String,
    port: u16,
    notes: Vec<String>,
}

impl Default for Overrides {
    /// NeMo Gym's own defaults.
    fn default() -> Self {
        Self {
            host: String::from("127.0.0.1"),
            port: 11000,
            notes: Vec::new(),
        }
    }
}

/// The dotted key of an override, with its sign, and the text of its value.
///
/// # Errors
/// A reason, if it does not read as `+key=value`.
fn split(text: &str) -> Result<(&str, &str), String> {
    let Some((signed, value)) = text.split_once('=') else {
        return Err(String::from(
            "write +key=value, such as +limit=10, or use a flag (see --help)",
        ));
    };
    match signed {
        deleted if deleted.starts_with('~') => Err(format!(
            "nothing can be deleted; write +{}=null to return to the default",
            deleted.trim_start_matches('~')
        )),
        plain if !plain.starts_with('+') => Err(format!("write a `+` before it: +{plain}=...")),
        signed => Ok((signed, value)),
    }
}

impl Overrides {
    /// Remarks on the overrides that were read, for a person.
    pub(super) fn notes(self) -> Vec<String> {
        self.notes
    }

    /// Reads one override; none if it changes nothing.
    pub(super) fn read(&mut self, text: &str) -> Result<Option<Assignment>, ConfigError> {
        let refuse = |text: &str, reason: String| ConfigError::Override {
            text: text.to_owned(),
            reason,
        };
        let (signed, text) = split(text).map_err(|reason| {
            let key = text.split('=').next().unwrap_or_default();
            refuse(key, reason)
        })?;
        let key = signed.strip_prefix("++").or(signed.strip_prefix('+'));
        let path = key.and_then(KeyPath::parse).ok_or_else(|| {
            let reason = "the key has an empty part; write +key=value or +key.lower=value";
            refuse(signed, reason.to_owned())
        })?;
        let origin = Origin::Override(signed.to_owned());
        let invalid = |path: &KeyPath, reason: String| ConfigError::Invalid {
            key: path.to_string(),
            origin: origin.clone(),
            reason,
        };

        let (path, value) = match nemo_gym::meaning(path.root()) {
            Some(Meaning::Nothing(reason)) => {
                return Err(ConfigError::NoMeaning {
                    key: signed.to_owned(),
                    reason,
                });
            }
            Some(Meaning::Anyway(reason)) => {
                self.notes
                    .push(format!("{signed} changes nothing: {reason}"));
                return Ok(None);
            }
            Some(Meaning::Only(granted, reason)) => {
                let granted: Option<Value> = serde_json::from_str(granted).ok();
                if granted.is_some() && hydra::value(text).ok() == granted {
                    return Ok(None);
                }
                return Err(ConfigError::NoMeaning {
                    key: signed.to_owned(),
                    reason,
                });
            }
            Some(Meaning::HeadServer) => {
                let value = self
                    .head_server(&path, text)
                    .map_err(|reason| invalid(&path, reason))?;
                (KeyPath::new(["head_server"]), value)
            }
            Some(Meaning::Setting(name)) => {
                let path = renamed(&path, name);
                let value = typed(&path, text, &origin)?;
                (path, value)
            }
            Some(Meaning::Opposite(name)) => {
                let value = match typed(&renamed(&path, name), text, &origin)? {
                    Value::Bool(truth) => Value::Bool(!truth),
                    other => other,
                };
                (renamed(&path, name), value)
            }
            None if KEYS.iter().any(|(name, _)| *name == path.root()) => {
                let value = typed(&path, text, &origin)?;
                (path, value)
            }
            None => {
                let known = KEYS.iter().map(|(name, _)| *name).chain(nemo_gym::names());
                return Err(ConfigError::UnknownKey {
                    key: path.to_string(),
                    hint: keys::suggestion(path.root(), known),
                    origin,
                });
            }
        };
        Ok(Some(Assignment {
            path,
            value,
            origin,
        }))
    }

    /// One address of the host and port so far, or a whole address.
    fn head_server(&mut self, path: &KeyPath, text: &str) -> Result<Value, String> {
        let parts = match path.keys() {
            [_] => match hydra::value(text)? {
                Value::Object(map) => map.into_iter().collect(),
                Value::String(address) => return Ok(Value::String(address)),
                Value::Null => return Ok(Value::Null),
                _ => {
                    return Err(String::from(
                        "write +head_server.host=HOST +head_server.port=PORT",
                    ));
                }
            },
            [_, key] => vec![(key.clone(), hydra::value(text)?)],
            _ => {
                return Err(String::from(
                    "only `host` and `port` stand below `head_server`",
                ));
            }
        };
        for (key, value) in parts {
            match (key.as_str(), &value) {
                ("host", Value::String(host)) if !host.is_empty() => self.host.clone_from(host),
                ("port", Value::Number(port)) => {
                    self.port = port
                        .as_u64()
                        .and_then(|port| u16::try_from(port).ok())
                        .filter(|port| *port > 0)
                        .ok_or_else(|| format!("{port} is no port: expected 1 to 65535"))?;
                }
                ("host" | "port", _) => return Err(format!("the {key} cannot be {value}")),
                _ => return Err(format!("it has no `{key}`, only `host` and `port`")),
            }
        }
        let host = match self.host.contains(':') && !self.host.starts_with('[') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        };
        let address = format!("http://{host}:{}", self.port);
        match address.parse::<ServerUrl>() {
            Ok(url) => Ok(Value::String(url.to_string())),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn renamed(path: &KeyPath, root: &str) -> KeyPath {
    let below = path.keys().iter().skip(1).map(String::as_str);
    KeyPath::new(std::iter::once(root).chain(below))
}

fn typed(path: &KeyPath, text: &str, origin: &Origin) -> Result<Value, ConfigError> {
    let invalid = |reason: String| ConfigError::Invalid {
        key: path.to_string(),
        origin: origin.clone(),
        reason,
    };
    let kind = keys::kind(path, origin)?;
    if kind != Kind::Tree && text.contains("${") {
        return Err(invalid(String::from(
            "interpolations such as ${...} are resolved in responses_create_params only; write the value itself",
        )));
    }
    keys::read(kind, text, Source::Override).map_err(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read_all(texts: &[&str]) -> Result<Vec<(String, Value)>, ConfigError> {
        let mut overrides = Overrides::default();
        let read = texts.iter().map(|text| overrides.read(text));
        let pair = |read: Assignment| (read.path.to_string(), read.value);
        read.filter_map(Result::transpose)
            .map(|read| read.map(pair))
            .collect()
    }

    #[test]
    fn nemo_gym_names_become_settings() {
        for (text, key, value) in [
            ("+agent_name=a", "agent", json!("a")),
            ("++agent_name='a b'", "agent", json!("a b")),
            ("+agent_name=null", "agent", json!(null)),
            ("+input_jsonl_fpath=x.jsonl", "input", json!("x.jsonl")),
            (
                "+output_jsonl_fpath=y.jsonl",
                "gym_output",
                json!("y.jsonl"),
            ),
            ("+limit=5", "limit", json!(5)),
            ("+limit=null", "limit", json!(null)),
            ("+agent_map={a: b}", "agent_map", json!({"a": "b"})),
            ("+agent_map._default=b", "agent_map._default", json!("b")),
            ("+fan_out={a: [b, c]}", "fan_out", json!({"a": ["b", "c"]})),
            ("++fan_out=null", "fan_out", json!(null)),
            ("+num_repeats=4", "num_repeats", json!(4)),
            (
                "+num_repeats={a:32,_default:1}",
                "num_repeats",
                json!({"a": 32, "_default": 1}),
            ),
            ("+num_repeats.a=3", "num_repeats.a", json!(3)),
            ("+num_samples_in_parallel=10", "concurrency", json!(10)),
            ("+resume_from_cache=true", "resume", json!(true)),
            ("+disable_aggregation=true", "aggregate", json!(false)),
            ("+prompt_config=p.yaml", "prompt_config", json!("p.yaml")),
            (
                "++responses_create_params.temperature=0.6",
                "responses_create_params.temperature",
                json!(0.6),
            ),
            (
                "+responses_create_params={max_output_tokens: 1000, reasoning: {effort: low}}",
                "responses_create_params",
                json!({"max_output_tokens": 1000, "reasoning": {"effort": "low"}}),
            ),
            (
                "+responses_create_params.user=${name}",
                "responses_create_params.user",
                json!("${name}"),
            ),
            (
                "+agents.\"v1.5\".concurrency=3",
                "agents.\"v1.5\".concurrency",
                json!(3),
            ),
            ("+queries=q=1", "queries", json!("q=1")),
            ("+dispatch_budget_s=0", "dispatch_budget_s", json!(0)),
            ("+drain_margin_s=null", "drain_margin_s", json!(null)),
            (
                "+count_failure_classes_as_zero=[a,b]",
                "count_failure_classes_as_zero",
                json!(["a", "b"]),
            ),
        ] {
            assert_eq!(
                read_all(&[text]).unwrap(),
                [(key.to_owned(), value)],
                "{text}"
            );
        }
    }

    #[test]
    fn what_happens_anyway_is_no_setting_and_may_be_said() {
        let mut overrides = Overrides::default();
        for text in ["+upload_rollouts=false", "+agent_type=null"] {
            assert!(overrides.read(text).unwrap().is_none(), "{text}");
        }
        assert!(
            overrides
                .read("+retain_results_in_memory=true")
                .unwrap()
                .is_none()
        );
        let notes = overrides.notes();
        let start = "+retain_results_in_memory changes nothing: answers go to disk";
        assert!(notes.len() == 1 && notes[0].starts_with(start), "{notes:?}");
    }

    #[test]
    fn host_and_port_make_one_address() {
        let last = |texts: &[&str]| read_all(texts).unwrap().pop().unwrap().1;
        assert_eq!(last(&["+head_server.port=9"]), json!("http://127.0.0.1:9"));
        assert_eq!(last(&["+head_server.host=gym"]), json!("http://gym:11000"));
        assert_eq!(
            last(&["+head_server.host=::1", "+head_server.port=9"]),
            json!("http://[::1]:9")
        );
        assert_eq!(
            last(&["+head_server={host: h, port: 7}"]),
            json!("http://h:7")
        );
        assert_eq!(last(&["+head_server=http://h:1"]), json!("http://h:1"));
        for text in [
            "+head_server.port=0",
            "+head_server.port=x",
            "+head_server.pot=1",
        ] {
            assert!(read_all(&[text]).is_err(), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_granted_says_why() {
        for (text, expected) in [
            ("+config_paths=[a.yaml]", "--head-server"),
            ("+split=train", "--input"),
            ("+upload_rollouts=true", "--output s3://"),
            ("+dispatch_budget_s.a=1", "nothing can stand below"),
            ("+input_glob=x*", "rollstream sql"),
            ("+allow_partial_rollouts=true", "profiled"),
            ("+skills.path=s", "skills_ref"),
            ("+agent_nam=a", "did you mean `agent_name`?"),
            ("+agent=${oc.env:X}", "write the value itself"),
            ("+agents.a.uri=x", "did you mean `url`?"),
            ("limit=5", "write a `+` before it"),
            ("~limit=5", "+limit=null"),
            ("+limit", "write +key=value"),
            ("+=5", "empty part"),
            ("+a..b=5", "empty part"),
            ("+num_repeats={a:", "expected a value"),
        ] {
            let message = read_all(&[text]).unwrap_err().to_string();
            assert!(message.contains(expected), "{text}: {message}");
        }
        let message = read_all(&["+policy_api_key=sk-1"]).unwrap_err().to_string();
        assert!(!message.contains("sk-1"), "{message}");
    }
}
