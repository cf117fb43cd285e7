//! Which keys there are, and how a text from the environment or the command line is read for each.

use serde_json::Value;

use super::hydra;
use super::nemo_gym::{self, Meaning};
use super::{ConfigError, KeyPath, Origin, Repeats};

/// How values of a key look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A text; `007` and `true` stay what they are.
    Text,
    /// A list of texts.
    Texts,
    /// A number or a truth value.
    Scalar,
    /// A number for all, or a mapping that a later layer replaces as a whole.
    Repeats,
    /// A mapping with values of known kinds.
    Table,
    /// A mapping, or anything under it, that is not interpreted here.
    Tree,
}

/// Every setting, in the order of [`Settings`](super::Settings).
pub(super) const KEYS: &[(&str, Kind)] = &[
    ("input", Kind::Texts),
    ("output", Kind::Text),
    ("gym_output", Kind::Text),
    ("agent", Kind::Text),
    ("agent_map", Kind::Table),
    ("fan_out", Kind::Tree),
    ("environment_routing_mode", Kind::Text),
    ("environment_server_name", Kind::Text),
    ("environment_server_routes", Kind::Table),
    ("allow_unsupported_pairing", Kind::Scalar),
    ("limit", Kind::Scalar),
    ("num_repeats", Kind::Repeats),
    ("interleave_repeats", Kind::Scalar),
    ("num_repeats_add_seed", Kind::Scalar),
    ("seed_field", Kind::Text),
    ("prompt_config", Kind::Text),
    ("responses_create_params", Kind::Tree),
    ("head_server", Kind::Text),
    ("gym", Kind::Text),
    ("agents", Kind::Table),
    ("concurrency", Kind::Scalar),
    ("requests_per_second", Kind::Scalar),
    ("tokens_per_minute", Kind::Scalar),
    ("rollout_timeout", Kind::Text),
    ("first_byte_timeout", Kind::Text),
    ("connect_timeout", Kind::Text),
    ("read_timeout", Kind::Text),
    ("max_body", Kind::Text),
    ("memory", Kind::Text),
    ("infra_budget", Kind::Scalar),
    ("rate_limit_budget", Kind::Scalar),
    ("data_budget", Kind::Scalar),
    ("max_attempts", Kind::Scalar),
    ("retry_backoff", Kind::Text),
    ("retry_backoff_cap", Kind::Text),
    ("agent_patience", Kind::Text),
    ("max_failures", Kind::Scalar),
    ("max_error_rate", Kind::Scalar),
    ("dispatch_budget_s", Kind::Scalar),
    ("drain_margin_s", Kind::Scalar),
    ("dispatch_longest_first", Kind::Scalar),
    ("retry_terminal_timeouts", Kind::Scalar),
    ("retry_invalid_judge_responses", Kind::Scalar),
    ("require_complete", Kind::Scalar),
    ("count_failure_classes_as_zero", Kind::Texts),
    ("count_missing_rollouts_as_zero", Kind::Scalar),
    ("deadline", Kind::Text),
    ("grace", Kind::Text),
    ("bearer_token_env", Kind::Text),
    ("headers_env", Kind::Table),
    ("resume", Kind::Scalar),
    ("extend", Kind::Scalar),
    ("shard", Kind::Text),
    ("break_lock", Kind::Scalar),
    ("lease", Kind::Text),
    ("overwrite", Kind::Scalar),
    ("part_size", Kind::Text),
    ("part_interval", Kind::Text),
    ("partitions", Kind::Scalar),
    ("checkpoint_interval", Kind::Text),
    ("state_dir", Kind::Text),
    ("show_failures", Kind::Scalar),
    ("aggregate", Kind::Scalar),
    ("agent_metrics", Kind::Scalar),
    ("health_check", Kind::Scalar),
    ("health_check_ignored_checks", Kind::Texts),
    ("queries", Kind::Text),
    ("params", Kind::Tree),
    ("sim", Kind::Tree),
];

/// Every setting of one agent, in the order of [`AgentSettings`](super::AgentSettings).
const AGENT_KEYS: &[(&str, Kind)] = &[
    ("kind", Kind::Text),
    ("url", Kind::Text),
    ("concurrency", Kind::Scalar),
    ("requests_per_second", Kind::Scalar),
    ("tokens_per_minute", Kind::Scalar),
    ("rollout_timeout", Kind::Text),
    ("infra_budget", Kind::Scalar),
    ("rate_limit_budget", Kind::Scalar),
    ("data_budget", Kind::Scalar),
    ("max_attempts", Kind::Scalar),
    ("input_price", Kind::Scalar),
    ("output_price", Kind::Scalar),
    ("bearer_token_env", Kind::Text),
    ("headers_env", Kind::Table),
    ("model_url", Kind::Texts),
    ("model", Kind::Text),
    ("model_api", Kind::Text),
    ("model_retries", Kind::Scalar),
    ("resources_url", Kind::Text),
    ("resources", Kind::Text),
    ("max_steps", Kind::Scalar),
    ("max_turns", Kind::Scalar),
    ("max_seq_len", Kind::Scalar),
    ("max_new_tokens", Kind::Scalar),
    ("tokenizer", Kind::Text),
    ("driver", Kind::Text),
    ("batch_size", Kind::Scalar),
    ("rules", Kind::Text),
    ("group", Kind::Text),
    ("generation_timeout", Kind::Text),
    ("step_timeout", Kind::Text),
    ("group_timeout", Kind::Text),
    ("environments", Kind::Tree),
    ("environment_headers_env", Kind::Table),
];

/// The kind of the value at `path`.
pub(super) fn kind(path: &KeyPath, origin: &Origin) -> Result<Kind, ConfigError> {
    let keys: Vec<&str> = path.keys().iter().map(String::as_str).collect();
    let found = match keys.as_slice() {
        ["agents"] | ["agents", _] => Ok(Kind::Table),
        ["agents", _, rest @ ..] => within(rest, AGENT_KEYS),
        all => within(all, KEYS),
    };
    found.map_err(|hint| ConfigError::UnknownKey {
        key: path.to_string(),
        origin: origin.clone(),
        hint,
    })
}

fn within(keys: &[&str], known: &[(&str, Kind)]) -> Result<Kind, String> {
    let Some((first, rest)) = keys.split_first() else {
        return Err(String::from("a setting has a name"));
    };
    let Some((_, kind)) = known.iter().find(|(name, _)| name == first) else {
        if let Some(Meaning::Setting(ours) | Meaning::Opposite(ours)) = nemo_gym::meaning(first) {
            return Err(format!("here it is called `{ours}`"));
        }
        return Err(suggestion(first, known.iter().map(|(name, _)| *name)));
    };
    match (kind, rest) {
        (kind, []) => Ok(*kind),
        (Kind::Tree, _) => Ok(Kind::Tree),
        (Kind::Table, [_]) => Ok(Kind::Text),
        (Kind::Repeats, [_]) => Ok(Kind::Scalar),
        _ => Err(format!("nothing can stand below `{first}`")),
    }
}

/// "did you mean" for the most similar name, or else all names.
pub(super) fn suggestion<'a>(wrong: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.collect();
    let likeness = |name: &str| {
        strsim::jaro_winkler(
            &wrong.to_lowercase().replace('-', "_"),
            &name.to_lowercase(),
        )
    };
    let best = known
        .iter()
        .map(|name| (likeness(name), *name))
        .max_by(|a, b| a.0.total_cmp(&b.0));
    match best {
        Some((score, name)) if score > 0.8 => format!("did you mean `{name}`?"),
        _ => format!("there are {}", known.join(", ")),
    }
}

/// Where a text was written: this decides about commas, quotes and `null`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// As the value of a flag: a text is taken as it is.
    Flag,
    /// In an environment variable: a text can be quoted, and a list can be separated by commas.
    Environment,
    /// In an override: a text can be quoted.
    Override,
}

/// Reads a text as a value of this kind. The text of a reason never holds the value of a table: secrets get
/// pasted there.
pub(super) fn read(kind: Kind, text: &str, source: Source) -> Result<Value, String> {
    match kind {
        Kind::Text if source == Source::Flag => Ok(Value::String(text.to_owned())),
        Kind::Text => hydra::text(text),
        Kind::Texts if source == Source::Flag => Ok(Value::from(vec![text])),
        Kind::Texts if text.trim_start().starts_with('[') => hydra::value(text),
        Kind::Texts if source == Source::Environment => Ok(text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .collect()),
        Kind::Texts => hydra::text(text),
        Kind::Repeats if text.contains('=') => {
            let repeats: Repeats = text.parse().map_err(|error| format!("{error}"))?;
            serde_json::to_value(repeats).map_err(|error| error.to_string())
        }
        Kind::Table => match hydra::value(text) {
            Ok(value @ (Value::Object(_) | Value::Null)) => Ok(value),
            _ => Err(String::from(EXPECTED_TABLE)),
        },
        Kind::Scalar | Kind::Repeats | Kind::Tree => hydra::value(text),
    }
}

/// What a table's value has to be.
pub(super) const EXPECTED_TABLE: &str = "expected a mapping, such as {name: value}";

#[cfg(test)]
mod tests {
    use super::super::{AgentSettings, Settings};
    use super::*;
    use serde_json::json;

    #[test]
    fn the_table_of_keys_is_that_of_the_types() {
        let names = |keys: &[(&str, Kind)]| -> Vec<String> {
            keys.iter().map(|(name, _)| (*name).to_owned()).collect()
        };
        let fields =
            |value: Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
        let settings = serde_json::to_value(Settings::default()).unwrap();
        let agent = serde_json::to_value(AgentSettings::default()).unwrap();
        assert_eq!(names(KEYS), fields(settings));
        assert_eq!(names(AGENT_KEYS), fields(agent));
    }

    #[test]
    fn keys_below_other_keys_are_known() {
        let kind = |text: &str| kind(&KeyPath::parse(text).unwrap(), &Origin::Default);
        assert_eq!(kind("agents.a.url").unwrap(), Kind::Text);
        assert_eq!(kind("agents.a.headers_env.X-Key").unwrap(), Kind::Text);
        assert_eq!(kind("responses_create_params.a.b.c").unwrap(), Kind::Tree);
        assert_eq!(kind("num_repeats.a").unwrap(), Kind::Scalar);
        for (key, hint) in [
            ("concurency", "did you mean `concurrency`?"),
            ("num-repeats", "did you mean `num_repeats`?"),
            ("agents.a.uri", "did you mean `url`?"),
            ("concurrency.a", "nothing can stand below"),
            ("headers_env.a.b", "nothing can stand below"),
            ("num_samples_in_parallel", "here it is called `concurrency`"),
            ("zzz", "there are input, output"),
        ] {
            let message = kind(key).unwrap_err().to_string();
            assert!(message.contains(hint), "{message}");
        }
    }

    #[test]
    fn a_text_is_read_as_its_kind_and_source_ask() {
        use Source::{Environment, Flag, Override};
        let read = |kind, text, source| read(kind, text, source).unwrap();
        assert_eq!(read(Kind::Text, "null", Flag), json!("null"));
        assert_eq!(read(Kind::Text, "null", Override), json!(null));
        assert_eq!(read(Kind::Text, "007", Environment), json!("007"));
        assert_eq!(read(Kind::Texts, "a,b", Flag), json!(["a,b"]));
        assert_eq!(read(Kind::Texts, "a, b", Environment), json!(["a", "b"]));
        assert_eq!(read(Kind::Texts, "[a, b]", Environment), json!(["a", "b"]));
        assert_eq!(
            read(Kind::Repeats, "a=2,_default=1", Flag),
            json!({"a": 2, "_default": 1})
        );
        assert_eq!(read(Kind::Repeats, "{a:2}", Override), json!({"a": 2}));
        assert_eq!(read(Kind::Scalar, "true", Environment), json!(true));
    }
}
