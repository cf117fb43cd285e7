//! `+key=value` and `++key=value`: overrides by our names or by those of NeMo Gym.

use serde_json::Value;

use super::hydra;
use super::keys::{self, KeyPath, Source, suggestion};
use super::tree::Assignment;
use crate::config::option_spec::Kind;
use crate::config::{ConfigError, Origin, ServerUrl, Settings};

/// Reads overrides one after the other, and remembers host and port of the head server in between.
#[derive(Debug)]
pub(super) struct Overrides {
    host: String,
    port: u16,
    notes: Vec<String>,
    for_gym: Vec<ForGym>,
}

/// An override that only NeMo Gym's programs can read.
#[derive(Debug)]
struct ForGym {
    path: KeyPath,
    /// The override for them.
    text: String,
    /// The error where none of them is started.
    otherwise: ConfigError,
}

/// The overrides that NeMo Gym's programs get.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Forwarded {
    /// Those without secrets.
    pub plain: Vec<String>,
    /// Those that hold secrets, such as `policy_api_key`.
    pub secret: Vec<String>,
}

impl Default for Overrides {
    /// NeMo Gym's own defaults.
    fn default() -> Self {
        Self {
            host: String::from("127.0.0.1"),
            port: 11000,
            notes: Vec::new(),
            for_gym: Vec::new(),
        }
    }
}

/// The dotted key of an override, with its sign, and the text of its value.
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
    /// Returns what NeMo Gym's programs get, if this sweep starts them, and remarks on the overrides, for people.
    ///
    /// # Errors
    /// An override has no meaning without these programs.
    pub(super) fn finish(self, starts_gym: bool) -> Result<(Forwarded, Vec<String>), ConfigError> {
        let mut notes = self.notes;
        let mut forwarded = Forwarded::default();
        for ForGym {
            path,
            text,
            otherwise,
        } in self.for_gym
        {
            if !starts_gym {
                return Err(otherwise);
            }
            // A key of servers may be like one of ours by chance: only what looks like a slip is worth a remark.
            let keys = Settings::options().iter().map(|option| option.key);
            let is_slip = |name: &&str| strsim::levenshtein(path.root(), name) <= 2;
            if meaning(path.root()).is_none()
                && path.keys().len() == 1
                && let Some(meant) = keys.chain(names()).find(is_slip)
            {
                notes.push(format!(
                    "+{path} is passed on to NeMo Gym; if it is not meant for it: did you mean `{meant}`?"
                ));
            }
            if is_secret(&path, &text) {
                forwarded.secret.push(text);
            } else {
                forwarded.plain.push(text);
            }
        }
        Ok((forwarded, notes))
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
        let no_meaning = |reason| ConfigError::NoMeaning {
            key: signed.to_owned(),
            reason,
        };
        let (path, value) = match meaning(path.root()) {
            Some(Meaning::Nothing(reason)) => return Err(no_meaning(reason)),
            Some(Meaning::Servers(reason)) => {
                self.pass_on(path, signed, text, no_meaning(reason));
                return Ok(None);
            }
            Some(Meaning::Anyway(reason)) => {
                let note = format!("{signed} changes nothing: {reason}");
                self.notes.push(note);
                return Ok(None);
            }
            Some(Meaning::Only(granted, reason)) => {
                let granted: Option<Value> = serde_json::from_str(granted).ok();
                if granted.is_none() || hydra::value(text).ok() != granted {
                    return Err(no_meaning(reason));
                }
                return Ok(None);
            }
            Some(Meaning::HeadServer) => {
                let value = self.head_server(&path, text);
                let value = value.map_err(|reason| ConfigError::invalid(&path, &origin, reason))?;
                (KeyPath::new(["head_server"]), value)
            }
            Some(Meaning::Setting(name)) => typed(renamed(&path, name), text, &origin)?,
            Some(Meaning::Opposite(name)) => match typed(renamed(&path, name), text, &origin)? {
                (path, Value::Bool(truth)) => (path, Value::Bool(!truth)),
                other => other,
            },
            None if Settings::options()
                .iter()
                .any(|option| option.key == path.root()) =>
            {
                typed(path, text, &origin)?
            }
            None => {
                let keys = Settings::options().iter().map(|option| option.key);
                let unknown = ConfigError::UnknownKey {
                    key: path.to_string(),
                    hint: suggestion(path.root(), keys.chain(names())),
                    origin,
                };
                self.pass_on(path, signed, text, unknown);
                return Ok(None);
            }
        };
        Ok(Some(Assignment {
            path,
            value,
            origin,
        }))
    }

    /// Keeps an override for NeMo Gym's programs. The later of two for the same key wins, which Hydra would refuse.
    fn pass_on(&mut self, path: KeyPath, signed: &str, text: &str, otherwise: ConfigError) {
        self.for_gym.retain(|known| known.path != path);
        let key = signed.trim_start_matches('+');
        self.for_gym.push(ForGym {
            path,
            text: format!("++{key}={text}"),
            otherwise,
        });
    }

    /// One address of the host and port so far, or a whole address.
    fn head_server(&mut self, path: &KeyPath, text: &str) -> Result<Value, String> {
        let parts = match path.keys() {
            [_] => match hydra::value(text)? {
                Value::Object(map) => map.into_iter().collect(),
                Value::String(address) => return Ok(Value::String(address)),
                Value::Null => return Ok(Value::Null),
                _ => return Err("write +head_server.host=HOST +head_server.port=PORT".to_owned()),
            },
            [_, key] => vec![(key.clone(), hydra::value(text)?)],
            _ => return Err("only `host` and `port` stand below `head_server`".to_owned()),
        };
        for (key, value) in parts {
            match (key.as_str(), &value) {
                ("host", Value::String(host)) if !host.is_empty() => self.host.clone_from(host),
                ("port", Value::Number(port)) => {
                    let number = port.as_u64().and_then(|port| u16::try_from(port).ok());
                    let number = number.filter(|port| *port > 0);
                    self.port =
                        number.ok_or_else(|| format!("{port} is no port: expected 1 to 65535"))?;
                }
                ("host" | "port", _) => return Err(format!("the {key} cannot be {value}")),
                _ => return Err(format!("it has no `{key}`, only `host` and `port`")),
            }
        }
        let (host, port) = (&self.host, self.port);
        let address = if host.contains(':') && !host.starts_with('[') {
            format!("http://[{host}]:{port}")
        } else {
            format!("http://{host}:{port}")
        };
        let url = address.parse::<ServerUrl>();
        url.map(|url| url.to_string().into())
            .map_err(|error| error.to_string())
    }
}

/// Whether an override holds a secret, by its name. A reference such as `${oc.env:KEY}` is none.
fn is_secret(path: &KeyPath, text: &str) -> bool {
    let value = text.split_once('=').map_or("", |(_, value)| value);
    let name = path.keys().last().map_or("", String::as_str).to_lowercase();
    let words = ["api_key", "apikey", "token", "password", "secret"];
    let is_named = words.iter().any(|word| name.ends_with(word)) || value.contains("api_key");
    is_named && !value.starts_with("${") && !matches!(value, "" | "null")
}

fn renamed(path: &KeyPath, root: &str) -> KeyPath {
    let below = path.keys().iter().skip(1).map(String::as_str);
    KeyPath::new(std::iter::once(root).chain(below))
}

fn typed(path: KeyPath, text: &str, origin: &Origin) -> Result<(KeyPath, Value), ConfigError> {
    let kind = keys::kind(&path, origin)?;
    if kind != Kind::Tree && text.contains("${") {
        let reason = "interpolations such as ${...} are resolved in responses_create_params only; write the value itself";
        return Err(ConfigError::invalid(&path, origin, reason));
    }
    let value = keys::read(kind, text, Source::Override);
    let value = value.map_err(|reason| ConfigError::invalid(&path, origin, reason))?;
    Ok((path, value))
}

/// The meaning of one of NeMo Gym's options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The setting of this name, with the same values.
    Setting(&'static str),
    /// The opposite of the setting of this name.
    Opposite(&'static str),
    /// Host and port, which become one address.
    HeadServer,
    /// Only this value, in JSON, is accepted, and changes nothing; the reason is for all others.
    Only(&'static str, &'static str),
    /// No value changes anything, for this reason.
    Anyway(&'static str),
    /// A setting of NeMo Gym's servers: only a sweep that starts them takes it, for this reason.
    Servers(&'static str),
    /// No meaning, for this reason.
    Nothing(&'static str),
}

const SERVERS: &str = "it configures NeMo Gym's servers, and this sweep starts none; name their configuration with \
     +config_paths=[...] or --gym-config, or start them with NeMo Gym, then give --head-server http://127.0.0.1:11000";
const MODEL: &str = "the model is the setting of an agent, and this sweep starts none; give it to NeMo Gym where the servers are \
     started, or start them here with +config_paths=[...] or --gym-config";
const SHARDS: &str = "there are no shards to merge: the runs stay as they are, and \
     `rollstream sql RUN... -c 'select ...'` asks questions of any number of them";
const PROFILE: &str = "a run is profiled by `rollstream collect` itself, and a partial one too; see the run's metrics/ \
     or ask `rollstream sql RUN`";

/// NeMo Gym's options that are not the names of settings (those are in their declarations).
const OTHERS: &[(&[&str], Meaning)] = &[
    (&["head_server"], Meaning::HeadServer),
    (
        &["upload_rollouts_to_wandb"],
        Meaning::Setting("upload_rollouts"),
    ),
    (&["agent_type"], Meaning::Only("null", SERVERS)),
    (
        &["route_failures_to_sidecar"],
        Meaning::Anyway(
            "a failure never ends a sweep: it is a row of `attempts`, and `rollstream export` writes NeMo Gym's \
             _failures.jsonl",
        ),
    ),
    (
        &["max_resident_rollout_tasks"],
        Meaning::Anyway("what waits for its turn is read as it is needed, within --memory"),
    ),
    (
        &["retain_results_in_memory"],
        Meaning::Anyway("answers go to disk as they come and are not kept in memory"),
    ),
    (
        &["global_aiohttp_client_request_debug"],
        Meaning::Anyway(
            "the first failures of each kind are shown as they happen, as many as --show-failures says",
        ),
    ),
    (
        &["health_check_workers"],
        Meaning::Anyway("health checks are queries and need no processes of their own"),
    ),
    (
        &[
            "default_host",
            "error_on_almost_servers",
            "skip_verification",
        ],
        Meaning::Servers(SERVERS),
    ),
    (
        &["policy_base_url", "policy_api_key", "policy_model_name"],
        Meaning::Servers(MODEL),
    ),
    (&["input_glob", "merge_shards"], Meaning::Nothing(SHARDS)),
    (
        &[
            "materialized_inputs_jsonl_fpath",
            "rollouts_jsonl_fpath",
            "allow_partial_rollouts",
            "pass_threshold",
        ],
        Meaning::Nothing(PROFILE),
    ),
    (
        &["skills"],
        Meaning::Nothing(
            "skill directories are handed out by NeMo Gym's own collector only; \
             put `skills_ref` into the task rows where the agent reads it",
        ),
    ),
    (
        &["rollout_collection_driver"],
        Meaning::Nothing(
            "a driver is Python code that replaces NeMo Gym's collector, and this is another collector",
        ),
    ),
    (
        &["dry_run"],
        Meaning::Nothing(
            "use `rollstream plan` with the same options: it prints the plan and sends nothing",
        ),
    ),
    (&["h", "help"], Meaning::Nothing("use --help")),
];

/// The meaning of an option of this name; `None` for names that are not only NeMo Gym's.
pub(super) fn meaning(name: &str) -> Option<Meaning> {
    let mut options = Settings::options().iter();
    match options.find(|option| option.gym_name == Some(name)) {
        Some(option) if option.default == true => Some(Meaning::Opposite(option.key)),
        Some(option) => Some(Meaning::Setting(option.key)),
        None => {
            let found = OTHERS.iter().find(|(names, _)| names.contains(&name));
            found.map(|(_, meaning)| *meaning)
        }
    }
}

/// All names that have a meaning of their own.
fn names() -> impl Iterator<Item = &'static str> {
    let options = Settings::options().iter();
    let others = OTHERS.iter().flat_map(|(names, _)| names.iter().copied());
    options.filter_map(|option| option.gym_name).chain(others)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read_all(texts: &[&str]) -> Result<Vec<(String, Value)>, ConfigError> {
        let mut overrides = Overrides::default();
        let read = texts.iter().map(|text| overrides.read(text));
        let pair = |read: Assignment| (read.path.to_string(), read.value);
        let read = read.filter_map(Result::transpose);
        let read = read.map(|read| read.map(pair)).collect::<Result<_, _>>()?;
        overrides.finish(false)?;
        Ok(read)
    }

    #[test]
    fn what_only_servers_know_is_passed_on_to_them_once_and_secrets_apart() {
        let mut overrides = Overrides::default();
        for text in [
            "+policy_model_name=a",
            "++policy_model_name=b",
            "+policy_api_key=sk-1",
            "+judge.api_key=${oc.env:KEY}",
            "+my_agent.responses_api_agents.a.max_steps=3",
            "+num_repeat=4",
        ] {
            assert!(overrides.read(text).unwrap().is_none(), "{text}");
        }
        let (forwarded, notes) = overrides.finish(true).unwrap();
        assert_eq!(
            forwarded.plain,
            [
                "++policy_model_name=b",
                "++judge.api_key=${oc.env:KEY}",
                "++my_agent.responses_api_agents.a.max_steps=3",
                "++num_repeat=4",
            ]
        );
        assert_eq!(forwarded.secret, ["++policy_api_key=sk-1"]);
        assert!(
            notes.len() == 1 && notes[0].contains("did you mean `num_repeats`?"),
            "{notes:?}"
        );
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
                "+upload_rollouts_to_wandb=false",
                "upload_rollouts",
                json!(false),
            ),
            ("+wandb_api_key=007", "wandb_api_key", json!("007")),
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
        assert!(overrides.read("+agent_type=null").unwrap().is_none());
        assert!(
            overrides
                .read("+retain_results_in_memory=true")
                .unwrap()
                .is_none()
        );
        let (_, notes) = overrides.finish(false).unwrap();
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
            ("+policy_base_url=http://h", "+config_paths"),
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

    #[test]
    fn every_translation_leads_to_a_setting() {
        let setting = |name: &str| Settings::options().iter().any(|option| option.key == name);
        for name in names() {
            match meaning(name) {
                Some(Meaning::Setting(target) | Meaning::Opposite(target)) => {
                    assert!(setting(target) && !setting(name), "{name}");
                }
                Some(Meaning::HeadServer) => assert!(setting(name)),
                Some(Meaning::Only(value, reason)) => {
                    let value = serde_json::from_str::<serde_json::Value>(value);
                    assert!(
                        !setting(name) && !reason.is_empty() && value.is_ok(),
                        "{name}"
                    );
                }
                Some(
                    Meaning::Anyway(reason) | Meaning::Servers(reason) | Meaning::Nothing(reason),
                ) => {
                    assert!(!setting(name) && !reason.is_empty(), "{name}");
                }
                None => panic!("{name}"),
            }
        }
    }

    #[test]
    fn every_documented_name_is_known() {
        let same = [
            "limit",
            "num_repeats",
            "num_repeats_add_seed",
            "responses_create_params",
            "prompt_config",
            "config_paths",
            "split",
            "reuse_existing_data_preparation",
            "agent_map",
            "fan_out",
            "interleave_repeats",
            "environment_routing_mode",
            "environment_server_name",
            "environment_server_routes",
            "allow_unsupported_pairing",
            "health_check_ignored_checks",
            "require_complete",
            "count_failure_classes_as_zero",
            "count_missing_rollouts_as_zero",
            "dispatch_budget_s",
            "drain_margin_s",
            "dispatch_longest_first",
            "retry_terminal_timeouts",
            "retry_invalid_judge_responses",
            "upload_rollouts",
            "wandb_project",
            "wandb_name",
            "wandb_api_key",
            "mlflow_tracking_uri",
            "mlflow_tracking_token",
            "mlflow_experiment_name",
            "mlflow_run_name",
        ];
        for name in same {
            let is_setting = Settings::options().iter().any(|option| option.key == name);
            assert!(meaning(name).is_none() && is_setting);
        }
        for name in "agent_name input_jsonl_fpath output_jsonl_fpath num_samples_in_parallel resume_from_cache \
                     disable_aggregation upload_rollouts_to_wandb input_glob merge_shards materialized_inputs_jsonl_fpath \
                     rollouts_jsonl_fpath allow_partial_rollouts head_server max_resident_rollout_tasks retain_results_in_memory \
                     disable_health_check health_check_workers \
                     route_failures_to_sidecar agent_type"
            .split_whitespace()
        {
            assert!(meaning(name).is_some(), "{name}");
        }
    }
}
