//! Settings from environment variables: `ROLLSTREAM_` and the setting's name in capitals.

use std::ffi::OsString;

use super::keys::{self, Source};
use super::tree::{Assignment, leaves};
use crate::config::option_spec::OptionSpec;
use crate::config::{ConfigError, KeyPath, Origin, Settings};

/// The beginning of the names of all our environment variables.
pub const PREFIX: &str = "ROLLSTREAM_";

/// The variable that names the configuration file.
pub const CONFIG_VARIABLE: &str = "ROLLSTREAM_CONFIG";

/// The variable that holds the bearer token where `bearer_token_env` names no other.
pub const BEARER_TOKEN_VARIABLE: &str = "ROLLSTREAM_BEARER_TOKEN";

/// Our variables that are no settings. Their values are not read here.
const OTHERS: [&str; 3] = [
    BEARER_TOKEN_VARIABLE,
    "ROLLSTREAM_CONFORMANCE",
    "ROLLSTREAM_LOG",
];

#[derive(Debug, Default)]
pub(super) struct Environment {
    /// The variables of settings, in the order of the settings.
    pub assignments: Vec<Assignment>,
    /// Names that start like ours but are no setting. Some may hold secrets that the settings refer to.
    pub unknown: Vec<String>,
    /// The configuration file.
    pub config: Option<OsString>,
}

/// Picks out our variables, and those of NeMo Gym, which ours win over. An empty variable counts as not set.
pub(super) fn read(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Environment, ConfigError> {
    let mut environment = Environment::default();
    let mut nemo_gym = Vec::new();
    for (name, value) in variables {
        let Some(name) = name.to_str().filter(|_| !value.is_empty()) else {
            continue;
        };
        let assignment = |option: &OptionSpec, value| Assignment {
            path: KeyPath::new([option.key]),
            value,
            origin: Origin::Environment(name.to_owned()),
        };
        let gym = |option: &OptionSpec| option.gym_variable.filter(|(gym, _)| *gym == name);
        let mut options = Settings::options().iter();
        if let Some((option, (_, read))) = options.find_map(|option| Some((option, gym(option)?))) {
            nemo_gym.extend(read(&value).map(|value| assignment(option, value)));
        } else if !name.starts_with(PREFIX) || OTHERS.contains(&name) {
            continue;
        } else if name == CONFIG_VARIABLE {
            environment.config = Some(value);
        } else if let Some(option) = Settings::options()
            .iter()
            .find(|option| option.variable() == name)
        {
            let text = value
                .to_str()
                .ok_or_else(|| "the value is not UTF-8".to_owned());
            let read = text.and_then(|text| keys::read(option.kind, text, Source::Environment));
            let origin = Origin::Environment(name.to_owned());
            let path = KeyPath::new([option.key]);
            let value = read.map_err(|reason| ConfigError::invalid(&path, &origin, reason))?;
            environment.assignments.push(assignment(option, value));
        } else {
            environment.unknown.push(name.to_owned());
        }
    }
    environment.assignments.splice(0..0, nemo_gym);
    environment.unknown.sort_unstable();
    Ok(environment)
}

/// Refuses the first name that is neither a setting nor the name of a secret in the settings.
pub(super) fn refuse_unknown(unknown: &[String], settings: &Settings) -> Result<(), ConfigError> {
    let settings = serde_json::to_value(settings).unwrap_or_default();
    let values = leaves(KeyPath::new([""; 0]), settings);
    let is_named = |name: &str| values.iter().any(|(_, value)| value == name);
    let Some(name) = unknown.iter().find(|name| !is_named(name)) else {
        return Ok(());
    };
    let variables: Vec<String> = Settings::options()
        .iter()
        .map(OptionSpec::variable)
        .collect();
    let known = variables.iter().map(String::as_str);
    Err(ConfigError::UnknownKey {
        key: name.clone(),
        origin: Origin::Environment("environment variable".to_owned()),
        hint: keys::suggestion(name, known.chain(OTHERS).chain([CONFIG_VARIABLE])),
    })
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
        let name = "NEMO_GYM_MAX_ROLLOUT_ATTEMPTS";
        assert_eq!(attempts(&[(name, " 5 ")]), [json!(5)]);
        assert!(attempts(&[(name, "0")]).is_empty() && attempts(&[(name, "x")]).is_empty());
        let both = [("ROLLSTREAM_MAX_ATTEMPTS", "7"), (name, "5")];
        assert_eq!(attempts(&both), [json!(5), json!(7)]);
    }

    #[test]
    fn nemo_gyms_pairings_are_allowed_by_all_but_no() {
        let allowed = |value: &str| {
            !environment(&[("NEMO_GYM_ALLOW_UNSUPPORTED_PAIRING", value)])
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
