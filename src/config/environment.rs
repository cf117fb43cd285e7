//! Settings from environment variables: `ROLLSTREAM_` and the setting's name in capitals.

use std::ffi::{OsStr, OsString};

use super::keys::{self, KEYS, Source};
use super::tree::Assignment;
use super::{ConfigError, KeyPath, Origin, Settings};

/// What the names of all our environment variables start with.
pub const PREFIX: &str = "ROLLSTREAM_";

/// The variable that names the configuration file.
pub const CONFIG_VARIABLE: &str = "ROLLSTREAM_CONFIG";

/// The variable that holds the bearer token where `bearer_token_env` names no other.
pub const BEARER_TOKEN_VARIABLE: &str = "ROLLSTREAM_BEARER_TOKEN";

/// NeMo Gym's variable for `max_attempts`. As there, a value that is no number of at least 1 counts as not set.
const NEMO_GYM_MAX_ATTEMPTS: &str = "NEMO_GYM_MAX_ROLLOUT_ATTEMPTS";

/// NeMo Gym's variable for `allow_unsupported_pairing`. As there, all but nothing, `0` and `false` is yes.
const NEMO_GYM_ALLOW_PAIRING: &str = "NEMO_GYM_ALLOW_UNSUPPORTED_PAIRING";

/// Variables that are not settings, but ours: their values are never read here.
const OTHERS: [&str; 3] = [
    BEARER_TOKEN_VARIABLE,
    "ROLLSTREAM_CONFORMANCE",
    "ROLLSTREAM_LOG",
];

/// What the environment says.
#[derive(Debug, Default)]
pub(super) struct Environment {
    /// The variables of settings, in the order of the settings.
    pub assignments: Vec<Assignment>,
    /// Names that start like ours but are no setting. Some may hold secrets that the settings refer to.
    pub unknown: Vec<String>,
    /// The configuration file.
    pub config: Option<OsString>,
}

/// Picks out our variables. An empty variable counts as not set.
pub(super) fn read(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Environment, ConfigError> {
    let mut environment = Environment::default();
    let mut nemo_gym = Vec::new();
    for (name, value) in variables {
        if name == NEMO_GYM_MAX_ATTEMPTS {
            nemo_gym.extend(max_attempts(&value));
            continue;
        }
        if name == NEMO_GYM_ALLOW_PAIRING {
            nemo_gym.extend(allow_pairing(&value));
            continue;
        }
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else {
            continue;
        };
        if value.is_empty() {
            continue;
        }
        if name == CONFIG_VARIABLE {
            environment.config = Some(value);
            continue;
        }
        if OTHERS.contains(&name) {
            continue;
        }
        let Some((key, kind)) = KEYS.iter().find(|(key, _)| variable(key) == name) else {
            environment.unknown.push(name.to_owned());
            continue;
        };
        let origin = Origin::Environment(name.to_owned());
        let invalid = |reason: String| ConfigError::Invalid {
            key: (*key).to_owned(),
            origin: origin.clone(),
            reason,
        };
        let text = value
            .to_str()
            .ok_or_else(|| invalid(String::from("the value is not UTF-8")))?;
        let value = keys::read(*kind, text, Source::Environment).map_err(invalid)?;
        environment.assignments.push(Assignment {
            path: KeyPath::new([*key]),
            value,
            origin,
        });
    }
    // Before our own variables, so that these win.
    environment.assignments.splice(0..0, nemo_gym);
    environment.unknown.sort_unstable();
    Ok(environment)
}

fn max_attempts(value: &OsStr) -> Option<Assignment> {
    let attempts: u32 = value.to_str()?.trim().parse().ok()?;
    (attempts >= 1).then(|| Assignment {
        path: KeyPath::new(["max_attempts"]),
        value: attempts.into(),
        origin: Origin::Environment(NEMO_GYM_MAX_ATTEMPTS.to_owned()),
    })
}

fn allow_pairing(value: &OsStr) -> Option<Assignment> {
    let value = value.to_str()?.to_lowercase();
    (!matches!(value.as_str(), "" | "0" | "false")).then(|| Assignment {
        path: KeyPath::new(["allow_unsupported_pairing"]),
        value: true.into(),
        origin: Origin::Environment(NEMO_GYM_ALLOW_PAIRING.to_owned()),
    })
}

/// Refuses the first name that is neither a setting nor a secret that the settings refer to.
pub(super) fn refuse_unknown(unknown: &[String], settings: &Settings) -> Result<(), ConfigError> {
    let agents = settings.agents.values();
    let referred = |name: &String| {
        let named = agents
            .clone()
            .flat_map(|agent| {
                agent
                    .bearer_token_env
                    .iter()
                    .chain(agent.headers_env.values())
                    .chain(agent.environment_headers_env.values())
            })
            .chain(&settings.bearer_token_env)
            .chain(settings.headers_env.values());
        named.into_iter().any(|variable| **variable == **name)
    };
    let Some(name) = unknown.iter().find(|name| !referred(name)) else {
        return Ok(());
    };
    let settings: Vec<String> = KEYS.iter().map(|(key, _)| variable(key)).collect();
    let known = settings
        .iter()
        .map(String::as_str)
        .chain(OTHERS)
        .chain([CONFIG_VARIABLE]);
    Err(ConfigError::UnknownKey {
        key: name.clone(),
        origin: Origin::Environment(String::from("environment variable")),
        hint: keys::suggestion(name, known),
    })
}

fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        read(
            variables
                .iter()
                .map(|(name, value)| (OsString::from(name), OsString::from(value))),
        )
        .unwrap()
    }

    #[test]
    fn our_variables_become_assignments_and_others_are_left_alone() {
        let read = environment(&[
            ("PATH", "/bin"),
            ("ROLLSTREAM_CONCURRENCY", "64"),
            ("ROLLSTREAM_NUM_REPEATS", "a=2,_default=1"),
            ("ROLLSTREAM_INPUT", "a.jsonl, b.jsonl"),
            ("ROLLSTREAM_AGENTS", "{a: {url: 'http://h:1'}}"),
            ("ROLLSTREAM_AGENT", "1"),
            ("ROLLSTREAM_LIMIT", ""),
            ("ROLLSTREAM_BEARER_TOKEN", "secret"),
            ("ROLLSTREAM_LOG", "debug"),
            ("ROLLSTREAM_CONFORMANCE", "x"),
            ("ROLLSTREAM_CONFIG", "a.toml"),
            ("ROLLSTREAM_OTHER", "x"),
        ]);
        let values: Vec<_> = read
            .assignments
            .iter()
            .map(|assignment| (assignment.path.to_string(), assignment.value.clone()))
            .collect();
        assert_eq!(
            values,
            [
                ("concurrency".to_owned(), json!(64)),
                ("num_repeats".to_owned(), json!({"a": 2, "_default": 1})),
                ("input".to_owned(), json!(["a.jsonl", "b.jsonl"])),
                ("agents".to_owned(), json!({"a": {"url": "http://h:1"}})),
                ("agent".to_owned(), json!("1")),
            ]
        );
        assert_eq!(read.config, Some("a.toml".into()));
        assert_eq!(read.unknown, ["ROLLSTREAM_OTHER"]);
    }

    #[test]
    fn nemo_gyms_attempts_count_where_they_are_a_number() {
        let attempts = |variables: &[(&str, &str)]| -> Vec<serde_json::Value> {
            let read = environment(variables).assignments.into_iter();
            read.map(|assignment| assignment.value).collect()
        };
        let name = NEMO_GYM_MAX_ATTEMPTS;
        assert_eq!(attempts(&[(name, " 5 ")]), [json!(5)]);
        assert!(attempts(&[(name, "0")]).is_empty() && attempts(&[(name, "x")]).is_empty());
        let both = [("ROLLSTREAM_MAX_ATTEMPTS", "7"), (name, "5")];
        assert_eq!(attempts(&both), [json!(5), json!(7)]);
    }

    #[test]
    fn nemo_gyms_pairings_are_allowed_by_all_but_no() {
        let allowed = |value: &str| {
            !environment(&[(NEMO_GYM_ALLOW_PAIRING, value)])
                .assignments
                .is_empty()
        };
        assert!(allowed("1") && allowed("yes"));
        assert!(!allowed("") && !allowed("0") && !allowed("False"));
    }

    #[test]
    fn unknown_names_are_refused_unless_the_settings_refer_to_them() {
        let unknown = ["ROLLSTREAM_CONCURENCY".to_owned()];
        let message = refuse_unknown(&unknown, &Settings::default())
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("did you mean `ROLLSTREAM_CONCURRENCY`?"),
            "{message}"
        );
        let settings: Settings = serde_json::from_value(
            json!({"agents": {"a": {"headers_env": {"X": "ROLLSTREAM_CONCURENCY"}}}}),
        )
        .unwrap();
        assert!(refuse_unknown(&unknown, &settings).is_ok());
    }
}
