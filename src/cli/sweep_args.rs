//! [`SweepArgs`]: the options that become settings. `config/options.rs` and `config/agent_options.rs` declare them.
//!
//! Flags and `+key=value` overrides can be mixed and the later wins, so the options keep the order in which they were typed.
//! Derived structs forget that order; this is why clap's traits are implemented by hand here.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};
use serde_json::Value;

use crate::config::option_spec::{Flag, Group, Target, flags};
use crate::config::{
    Argument, ConfigError, KeyPath, Layers, Settings, name_and_value, parameter_and_value,
};

/// The configuration file and the settings on the command line, in the order in which they were typed.
#[derive(Debug, Clone, Default)]
pub struct SweepArgs {
    /// The configuration file.
    pub config: Option<PathBuf>,
    /// Flags and overrides.
    pub arguments: Vec<Argument>,
}

impl SweepArgs {
    /// Returns the layers of the file and the command line.
    pub fn layers(&self) -> Layers {
        let layers = Layers::new().arguments(self.arguments.iter().cloned());
        match &self.config {
            Some(path) => layers.file(path),
            None => layers,
        }
    }
}

/// Returns the keys of trackers that overrides and the environment of this process set.
///
/// # Errors
/// An override is wrong.
pub(super) fn tracker_settings(overrides: &[String]) -> Result<Settings, ConfigError> {
    let is_of_tracker = |name: &OsString| {
        let name = name.to_string_lossy();
        name.contains("WANDB") || name.contains("MLFLOW")
    };
    let variables = std::env::vars_os().filter(|(name, _)| is_of_tracker(name));
    let overrides = overrides.iter().cloned().map(Argument::Override);
    let layers = Layers::new().environment(variables).arguments(overrides);
    layers.resolve().map(|resolved| resolved.settings)
}

const CONFIG: &str = "config";
const OVERRIDES: &str = "overrides";

impl Args for SweepArgs {
    fn augment_args(command: Command) -> Command {
        command.args(flags().into_iter().map(argument)).args([
            Arg::new(CONFIG)
                .long(CONFIG)
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("Settings in TOML or YAML (or set the variable ROLLSTREAM_CONFIG)")
                .long_help(
                    "Settings in TOML or YAML, by extension (or set the variable ROLLSTREAM_CONFIG). Options win \
                     over variables ROLLSTREAM_<SETTING>, those over the file; `rollstream config` shows where each \
                     comes from",
                )
                .help_heading(heading(Group::Run)),
            Arg::new(OVERRIDES)
                .value_name("+KEY=VALUE")
                .action(ArgAction::Append)
                .help("Settings by name, NeMo Gym's names too: +num_samples_in_parallel=64"),
        ])
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn argument(flag: &Flag) -> Arg {
    let argument = Arg::new(flag.name)
        .long(flag.name)
        .short(flag.short)
        .help(flag.help.clone())
        .help_heading(heading(flag.group));
    if let Target::Switch(..) = flag.target {
        return argument
            .action(ArgAction::SetTrue)
            .overrides_with(flag.name);
    }
    let check = flag.check;
    argument
        .action(ArgAction::Append)
        .value_name(flag.value)
        .allow_negative_numbers(true)
        .value_parser(move |text: &str| check(text).map(|()| text.to_owned()))
}

fn heading(group: Group) -> &'static str {
    match group {
        Group::Tasks => "Tasks",
        Group::Model => "A model as the agent",
        Group::Agents => "Agents",
        Group::GymServers => "NeMo Gym's servers",
        Group::Calls => "Calls",
        Group::Failures => "Failures",
        Group::Run => "Run",
    }
}

impl FromArgMatches for SweepArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut typed: Vec<(usize, Argument)> = Vec::new();
        for flag in flags() {
            let uses = uses(matches, flag.name)?;
            if let (Target::Items(key), Some((last, _))) = (&flag.target, uses.last()) {
                // The whole list takes the position of its last item.
                let last = *last;
                let items = uses.into_iter().map(|(_, text)| text).collect();
                typed.push((last, value(flag, key, items)));
                continue;
            }
            for (index, text) in uses {
                let argument = setting(flag, &text);
                let failed = |reason| broken(format!("--{}: {reason}", flag.name));
                typed.push((index, argument.map_err(failed)?));
            }
        }
        let overrides = uses(matches, OVERRIDES)?.into_iter();
        typed.extend(overrides.map(|(index, text)| (index, Argument::Override(text))));
        typed.sort_by_key(|(index, _)| *index);
        Ok(Self {
            config: matches.get_one::<PathBuf>(CONFIG).cloned(),
            arguments: typed.into_iter().map(|(_, argument)| argument).collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Returns every use of an option on the command line: its position and its text.
fn uses(matches: &ArgMatches, name: &str) -> Result<Vec<(usize, String)>, clap::Error> {
    if matches.value_source(name) != Some(ValueSource::CommandLine) {
        return Ok(Vec::new());
    }
    let indices = matches.indices_of(name).into_iter().flatten();
    let texts = matches.get_raw(name).into_iter().flatten();
    indices
        .zip(texts)
        .map(|(index, text)| match text.to_str() {
            Some(text) => Ok((index, text.to_owned())),
            None => Err(broken(format!("a value of `{name}` is not UTF-8"))),
        })
        .collect()
}

/// Returns the setting that one use of a flag sets.
fn setting(flag: &Flag, text: &str) -> Result<Argument, String> {
    let (key, text) = match &flag.target {
        Target::Switch(key, truth) => return Ok(value(flag, key, Value::Bool(*truth))),
        Target::Text(key) => return Ok(value(flag, key, text.into())),
        Target::File(key) => {
            let read = std::fs::read_to_string(text);
            let read = read.map_err(|error| format!("cannot read the file '{text}': {error}"))?;
            return Ok(value(flag, key, read.into()));
        }
        Target::Value(key) | Target::Items(key) => (key.clone(), text),
        Target::Named(key) => {
            let (name, text) = name_and_value(text)?;
            (key.child(name), text)
        }
        Target::OfAgent(key) => {
            let (name, text) = name_and_value(text)?;
            (KeyPath::new(["agents", name, key]), text)
        }
        Target::Parameter => parameter_and_value(text)?,
    };
    Ok(Argument::Text {
        flag: format!("--{}", flag.name),
        key,
        text: text.to_owned(),
    })
}

fn value(flag: &Flag, key: &KeyPath, value: Value) -> Argument {
    Argument::Value {
        flag: format!("--{}", flag.name),
        key: key.clone(),
        value,
    }
}

fn broken(reason: String) -> clap::Error {
    clap::Error::raw(ErrorKind::ValueValidation, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(options: &[&str]) -> Result<SweepArgs, String> {
        let command = SweepArgs::augment_args(Command::new("collect"));
        command
            .try_get_matches_from(std::iter::once(&"collect").chain(options))
            .and_then(|matches| SweepArgs::from_arg_matches(&matches))
            .map_err(|error| error.to_string())
    }

    /// The settings that the options give, one after the other, as `key=value`.
    fn settings(options: &[&str]) -> Vec<String> {
        let arguments = read(options).unwrap().arguments;
        let show = |argument: &Argument| match argument {
            Argument::Text { key, text, .. } => format!("{key}={text}"),
            Argument::Value { key, value, .. } => format!("{key}={value}"),
            Argument::Override(text) => text.clone(),
        };
        arguments.iter().map(show).collect()
    }

    #[test]
    fn options_and_overrides_keep_their_order() {
        let line = "-o a +resume=false --limit 1 --resume +limit=2 --limit=3 --limit -1";
        assert_eq!(
            settings(&line.split(' ').collect::<Vec<_>>()),
            [
                "output=a",
                "+resume=false",
                "limit=1",
                "resume=true",
                "+limit=2",
                "limit=3",
                "limit=-1"
            ]
        );
        let line = "-i a.jsonl +input=b.jsonl --input c.jsonl --config x.toml";
        let options: Vec<&str> = line.split(' ').collect();
        assert_eq!(
            settings(&options),
            ["+input=b.jsonl", "input=[\"a.jsonl\",\"c.jsonl\"]"]
        );
        assert_eq!(read(&options).unwrap().config, Some("x.toml".into()));
    }

    #[test]
    fn named_options_lead_below_their_setting() {
        assert_eq!(
            settings(&[
                "--agent-url=v1.5=http://h:1",
                "--agent-concurrency=a=3",
                "--header-env=X-Key=KEY",
                "--param=answer_key=a.b[0]",
                "--set=responses_create_params.a.b=[1]",
                "--temperature=0.5",
                "--disable-aggregation",
            ]),
            [
                "agents.\"v1.5\".url=http://h:1",
                "agents.a.concurrency=3",
                "headers_env.X-Key=KEY",
                "params.answer_key=a.b[0]",
                "responses_create_params.a.b=[1]",
                "responses_create_params.temperature=0.5",
                "aggregate=false",
            ]
        );
    }

    #[test]
    fn every_flag_leads_to_a_setting() {
        for flag in flags() {
            let text = match flag.target {
                Target::Named(_) | Target::OfAgent(_) => "x=1",
                Target::Parameter => "responses_create_params.x=1",
                // Tests run beside it.
                Target::File(_) => "Cargo.toml",
                _ => "1",
            };
            let (name, argument) = (flag.name, setting(flag, text).unwrap());
            if let Err(error) = Layers::new().arguments([argument]).resolve() {
                let message = error.to_string();
                assert!(!message.contains("unknown setting"), "--{name}: {message}");
            }
        }
    }

    #[test]
    fn typing_errors_are_answered_with_a_remedy() {
        for (option, expected) in [
            ("--set=limit=4", "+limit=..."),
            (
                "--set=responses_create_params=4",
                "responses_create_params.KEY=VALUE",
            ),
            ("--set=x", "responses_create_params.KEY=VALUE"),
            ("--concurrency=0", "a whole number of at least 1"),
            ("--agent-concurrency=a=0", "a whole number of at least 1"),
            ("--agent-url=http", "--agent-url: expected NAME=VALUE"),
            ("--param=resamples", "expected NAME=VALUE"),
            ("--num-repeats=a=0", "num_repeats dict values must be >= 1"),
            ("--read-timeout=soon", "such as 90s"),
            ("--part-size=big", "such as 128MiB"),
        ] {
            let message = read(&[option]).unwrap_err();
            assert!(message.contains(expected), "{option}: {message}");
        }
    }

    #[test]
    fn secrets_in_the_wrong_place_are_not_repeated() {
        for option in [
            "--bearer-token-env=sk-1",
            "--header-env=X-Key=sk-1",
            "--head-server=http://u:sk-1@h",
            "--agent-url=a=http://u:sk-1@h",
        ] {
            let error = read(&[option]).unwrap().layers().resolve().unwrap_err();
            assert!(!error.to_string().contains("sk-1"), "{error}");
        }
    }

    #[test]
    fn the_help_shows_the_defaults_of_the_settings() {
        let help = |name: &str| {
            let flag = flags().into_iter().find(|flag| flag.name == name);
            flag.unwrap().help.clone()
        };
        assert!(help("agent-patience").ends_with(" [default: 2m]"));
        assert!(help("concurrency").contains(" [default: 256]; "));
        assert!(help("max-body").ends_with(" [default: 256MiB]"));
        assert!(!help("agent").contains("default"));
    }
}
