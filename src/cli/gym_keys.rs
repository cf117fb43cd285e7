//! NeMo Gym's spelling of the options of `aggregate`, `compare` and `profile`: `+key=value` becomes the option.

use std::ffi::OsString;

use serde_json::Value;

use super::gym_eval;
use crate::config::{ConfigError, typed_text, typed_value};
use crate::error::Error;

/// What a key of NeMo Gym means to a command.
#[derive(Debug, Clone, Copy)]
enum Meaning {
    /// The argument of the command.
    Argument,
    /// The option of this name, with the same value.
    Option(&'static str),
    /// The option of this name if the value is true.
    Switch(&'static str),
    /// The option of this name if the value is false.
    Opposite(&'static str),
    /// Nothing: the key is accepted and ignored.
    Anyway,
}

use Meaning::{Anyway, Argument, Opposite, Option as Opt, Switch};

type Keys = &'static [(&'static str, Meaning)];

const AGGREGATE: Keys = &[
    ("input_glob", Argument),
    ("output_jsonl_fpath", Opt("--gym-output")),
    ("merge_shards", Opposite("--no-merge")),
    (
        "count_failure_classes_as_zero",
        Opt("--count-failure-classes-as-zero"),
    ),
    (
        "count_missing_rollouts_as_zero",
        Switch("--count-missing-rollouts-as-zero"),
    ),
    ("disable_health_check", Switch("--no-health-check")),
    ("health_check_workers", Anyway),
    ("health_check_ignored_checks", Opt("--health-check-ignore")),
];

const COMPARE: Keys = &[
    ("baseline_rollouts_jsonl_fpath", Opt("--baseline")),
    ("candidate_rollouts_jsonl_fpaths", Opt("--candidates")),
    (
        "baseline_aggregate_metrics_fpath",
        Opt("--baseline-agg-metrics"),
    ),
    (
        "candidate_aggregate_metrics_fpaths",
        Opt("--candidates-agg-metrics"),
    ),
    ("agent_name", Opt("--agent")),
    ("baseline_agent_name", Opt("--baseline-agent")),
    ("candidate_agent_names", Opt("--candidate-agents")),
    ("output_dirpath", Opt("--output-dir")),
    ("report_format", Opt("--report-format")),
];

const PROFILE: Keys = &[
    ("rollouts_jsonl_fpath", Argument),
    (
        "materialized_inputs_jsonl_fpath",
        Opt("--materialized-inputs"),
    ),
    ("allow_partial_rollouts", Switch("--allow-partial")),
];

/// Translates `gym eval ...` to our commands, and the `+key=value` and `++key=value` of a command line to options, for
/// commands that have such keys.
///
/// # Errors
/// The command has no such key, or the value has a wrong type.
pub fn translated(arguments: impl IntoIterator<Item = OsString>) -> Result<Vec<OsString>, Error> {
    let arguments = gym_eval::translated(arguments.into_iter().collect())?;
    let command = arguments.get(1).and_then(|command| command.to_str());
    let (command, keys) = match command {
        Some("aggregate") => ("aggregate", AGGREGATE),
        Some("compare") => ("compare", COMPARE),
        Some("profile") => ("profile", PROFILE),
        _ => return Ok(arguments),
    };
    let mut translated = Vec::with_capacity(arguments.len());
    for argument in arguments {
        let pair = argument.to_str().filter(|text| text.starts_with('+'));
        match pair.and_then(|pair| pair.trim_start_matches('+').split_once('=')) {
            None => translated.push(argument),
            Some((key, value)) => translated.extend(options(command, keys, key, value)?),
        }
    }
    Ok(translated)
}

fn options(command: &str, keys: Keys, key: &str, value: &str) -> Result<Vec<OsString>, Error> {
    let Some((_, meaning)) = keys.iter().find(|(name, _)| *name == key) else {
        let known: Vec<&str> = keys.iter().map(|(name, _)| *name).collect();
        return Err(Error::Usage(format!(
            "`{command}` does not know +{key}; the NeMo Gym keys that it knows are {}",
            known.join(", ")
        )));
    };
    let wrong = |reason| ConfigError::Override {
        text: format!("+{key}={value}"),
        reason,
    };
    let text = || text(value).map_err(wrong);
    let is_true = || match typed_value(value).map_err(wrong)? {
        Value::Bool(value) => Ok(value),
        Value::Null => Ok(false),
        _ => Err(wrong("the value must be true or false".into())),
    };
    Ok(match meaning {
        Argument => text()?.into_iter().map(OsString::from).collect(),
        Opt(option) => match text()? {
            Some(text) => vec![option.into(), text.into()],
            None => Vec::new(),
        },
        Switch(option) if is_true()? => vec![option.into()],
        Opposite(option) if !is_true()? => vec![option.into()],
        Switch(_) | Opposite(_) | Anyway => Vec::new(),
    })
}

/// Returns a value as text, the items of a list with commas between; `None` for `null` and for an empty list.
fn text(typed: &str) -> Result<Option<String>, String> {
    let is_list = typed.trim_start().starts_with('[');
    let read = if is_list { typed_value } else { typed_text };
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    Ok(match read(typed)? {
        Value::Null => None,
        Value::Array(items) if items.is_empty() => None,
        Value::Array(items) => Some(items.iter().map(text).collect::<Vec<_>>().join(",")),
        value => Some(text(&value)),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Translates a command line.
    pub(in crate::cli) fn line(text: &str) -> Result<String, String> {
        let words = text.split(' ').map(OsString::from);
        let words = translated(words).map_err(|error| error.to_string())?;
        let words: Vec<String> = words
            .into_iter()
            .map(|word| word.into_string().unwrap())
            .collect();
        Ok(words.join(" "))
    }

    #[test]
    fn keys_become_options_and_all_else_stays() {
        for (typed, meant) in [
            (
                "rollstream aggregate +input_glob=x/*.jsonl ++merge_shards=False -q +output_jsonl_fpath='m.jsonl'",
                "rollstream aggregate x/*.jsonl --no-merge -q --gym-output m.jsonl",
            ),
            (
                "rollstream aggregate +count_failure_classes_as_zero=[a,b] +count_missing_rollouts_as_zero=true",
                "rollstream aggregate --count-failure-classes-as-zero a,b --count-missing-rollouts-as-zero",
            ),
            (
                "rollstream profile +rollouts_jsonl_fpath=x.jsonl ++allow_partial_rollouts=True",
                "rollstream profile x.jsonl --allow-partial",
            ),
            ("rollstream collect +limit=5", "rollstream collect +limit=5"),
            (
                "rollstream aggregate +merge_shards=true",
                "rollstream aggregate",
            ),
        ] {
            assert_eq!(line(typed).unwrap(), meant);
        }
    }

    #[test]
    fn a_key_that_a_command_lacks_is_an_error_that_lists_those_it_has() {
        let error = line("rollstream profile +input_glob=x").unwrap_err();
        assert!(
            error.contains("+input_glob") && error.contains("rollouts_jsonl_fpath"),
            "{error}"
        );
        assert!(line("rollstream aggregate +merge_shards=2").is_err());
    }
}
