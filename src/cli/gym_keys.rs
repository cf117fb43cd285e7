//! NeMo Gym's spelling of the options of `aggregate`, `profile` and `compare`: `+key=value` becomes the option that it is here.

use std::ffi::OsString;

use serde_json::Value;

use crate::config::{ConfigError, typed_text, typed_value};
use crate::error::Error;

/// What a key of NeMo Gym's is to a command.
#[derive(Debug, Clone, Copy)]
enum Meaning {
    /// What the command is about.
    Argument,
    /// The option of this name, with the same value.
    Option(&'static str),
    /// The option of this name where the value is true.
    Switch(&'static str),
    /// The option of this name where the value is false.
    Opposite(&'static str),
    /// Nothing changes, whatever it is.
    Anyway,
}

use Meaning::{Anyway, Argument, Opposite, Option as Opt, Switch};

/// The command, the key, and what it is there.
const KEYS: &[(&str, &str, Meaning)] = &[
    ("aggregate", "input_glob", Argument),
    ("aggregate", "output_jsonl_fpath", Opt("--gym-output")),
    ("aggregate", "merge_shards", Opposite("--no-merge")),
    (
        "aggregate",
        "count_failure_classes_as_zero",
        Opt("--count-failure-classes-as-zero"),
    ),
    (
        "aggregate",
        "count_missing_rollouts_as_zero",
        Switch("--count-missing-rollouts-as-zero"),
    ),
    (
        "aggregate",
        "disable_health_check",
        Switch("--no-health-check"),
    ),
    ("aggregate", "health_check_workers", Anyway),
    (
        "aggregate",
        "health_check_ignored_checks",
        Opt("--health-check-ignore"),
    ),
    (
        "compare",
        "baseline_rollouts_jsonl_fpath",
        Opt("--baseline"),
    ),
    (
        "compare",
        "candidate_rollouts_jsonl_fpaths",
        Opt("--candidates"),
    ),
    (
        "compare",
        "baseline_aggregate_metrics_fpath",
        Opt("--baseline-agg-metrics"),
    ),
    (
        "compare",
        "candidate_aggregate_metrics_fpaths",
        Opt("--candidates-agg-metrics"),
    ),
    ("compare", "agent_name", Opt("--agent")),
    ("compare", "baseline_agent_name", Opt("--baseline-agent")),
    (
        "compare",
        "candidate_agent_names",
        Opt("--candidate-agents"),
    ),
    ("compare", "output_dirpath", Opt("--output-dir")),
    ("compare", "report_format", Opt("--report-format")),
    ("profile", "rollouts_jsonl_fpath", Argument),
    (
        "profile",
        "materialized_inputs_jsonl_fpath",
        Opt("--materialized-inputs"),
    ),
    (
        "profile",
        "allow_partial_rollouts",
        Switch("--allow-partial"),
    ),
];

/// A command line whose `+key=value` and `++key=value` are options, where the command knows them so.
///
/// # Errors
/// The command has no such key, or its value can't be what it is.
pub fn translated(arguments: impl IntoIterator<Item = OsString>) -> Result<Vec<OsString>, Error> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let command = arguments.get(1).and_then(|command| command.to_str());
    let Some(command) = command.filter(|name| KEYS.iter().any(|(command, ..)| command == name))
    else {
        return Ok(arguments);
    };
    let command = command.to_owned();
    let mut translated = Vec::with_capacity(arguments.len());
    for argument in arguments {
        let text = argument.to_str().unwrap_or_default();
        let pair = text.trim_start_matches('+').split_once('=');
        match pair.filter(|_| text.starts_with('+')) {
            None => translated.push(argument),
            Some((key, value)) => translated.extend(options(&command, key, value)?),
        }
    }
    Ok(translated)
}

fn options(command: &str, key: &str, value: &str) -> Result<Vec<OsString>, Error> {
    let own = || KEYS.iter().filter(|(of, ..)| *of == command);
    let Some((_, _, meaning)) = own().find(|(_, name, _)| *name == key) else {
        let known: Vec<&str> = own().map(|(_, name, _)| *name).collect();
        return Err(Error::Usage(format!(
            "`{command}` does not know +{key}; of NeMo Gym's keys it knows {}",
            known.join(", ")
        )));
    };
    let wrong = |reason| {
        Error::from(ConfigError::Override {
            text: format!("+{key}={value}"),
            reason,
        })
    };
    let is_true = || match typed_value(value).map_err(wrong)? {
        Value::Bool(value) => Ok(value),
        Value::Null => Ok(false),
        _ => Err(wrong("it is true or false".into())),
    };
    let option = match meaning {
        Argument => text(value)
            .map_err(wrong)?
            .map_or_else(Vec::new, |text| vec![text.into()]),
        Opt(option) => {
            let text = text(value).map_err(wrong)?;
            text.map_or_else(Vec::new, |text| vec![(*option).into(), text.into()])
        }
        Switch(option) if is_true()? => vec![(*option).into()],
        Opposite(option) if !is_true()? => vec![(*option).into()],
        Switch(_) | Opposite(_) | Anyway => Vec::new(),
    };
    Ok(option)
}

/// A value as options have it: a list with commas between; nothing for `null` and for a list without items.
fn text(typed: &str) -> Result<Option<String>, String> {
    let read = match typed.trim_start().starts_with('[') {
        true => typed_value,
        false => typed_text,
    };
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
mod tests {
    use super::*;

    fn line(text: &str) -> Result<String, String> {
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
