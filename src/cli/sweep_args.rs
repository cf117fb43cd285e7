//! [`SweepArgs`]: the options that become settings.
//!
//! Flags and `+key=value` overrides can be mixed and the later wins, so the options are kept in the order in which
//! they were typed; derived structs forget that order. This is why clap's traits are implemented by hand here.

use std::path::PathBuf;

use clap::builder::ValueParser;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};
use serde_json::Value;

use super::sweep_flags::{FLAGS, RUN, Target, dotted, name_and_value, parameter_and_value};
use crate::config::{Argument, KeyPath, Layers};

/// The configuration file and the settings on the command line, in the order in which they were typed.
#[derive(Debug, Clone, Default)]
pub struct SweepArgs {
    /// The configuration file.
    pub config: Option<PathBuf>,
    /// Flags and overrides.
    pub arguments: Vec<Argument>,
}

impl SweepArgs {
    /// The file and the command line as layers; the environment is still to be added.
    pub fn layers(&self) -> Layers {
        let layers = Layers::new().arguments(self.arguments.iter().cloned());
        match &self.config {
            Some(path) => layers.file(path),
            None => layers,
        }
    }
}

const CONFIG: &str = "config";
const OVERRIDES: &str = "overrides";

impl Args for SweepArgs {
    fn augment_args(command: Command) -> Command {
        let flags = FLAGS
            .iter()
            .map(|(heading, name, short, value, help, target, check)| {
                let arg = Arg::new(*name)
                    .long(*name)
                    .short(*short)
                    .help(*help)
                    .help_heading(*heading);
                match target {
                    Target::Switch(..) => arg.action(ArgAction::SetTrue).overrides_with(*name),
                    _ => arg
                        .action(ArgAction::Append)
                        .value_name(*value)
                        .allow_negative_numbers(true)
                        .value_parser(ValueParser::from(*check)),
                }
            });
        command.args(flags).args([
            Arg::new(CONFIG)
                .long(CONFIG)
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("Settings in TOML or YAML (so does the variable ROLLSTREAM_CONFIG)")
                .long_help(
                    "Settings in TOML or YAML, by extension (so does the variable ROLLSTREAM_CONFIG). Options win \
                     over variables ROLLSTREAM_<SETTING>, those over the file; `rollstream config` shows what came \
                     from where",
                )
                .help_heading(RUN),
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

impl FromArgMatches for SweepArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut typed: Vec<(usize, Argument)> = Vec::new();
        for (_, name, _, _, _, target, _) in FLAGS {
            let uses = uses(matches, name)?;
            let flag = format!("--{name}");
            match target {
                Target::Items(key) => {
                    // The whole list takes the place of its last item.
                    let last = uses.iter().map(|(index, _)| *index).max();
                    typed.extend(last.map(|index| {
                        let items = uses
                            .into_iter()
                            .map(|(_, text)| Value::String(text))
                            .collect();
                        (index, value(&flag, key, Value::Array(items)))
                    }));
                }
                Target::Switch(key, truth) => typed.extend(
                    uses.into_iter()
                        .map(|(index, _)| (index, value(&flag, key, Value::Bool(*truth)))),
                ),
                target => {
                    for (index, text) in uses {
                        let argument = valued(&flag, *target, &text)
                            .map_err(|reason| broken(format!("{flag}: {reason}")))?;
                        typed.push((index, argument));
                    }
                }
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

/// Every use of an option on the command line: its position and its text.
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

fn valued(flag: &str, target: Target, text: &str) -> Result<Argument, String> {
    let (key, text) = match target {
        Target::Setting(key) | Target::Items(key) | Target::Switch(key, _) => (dotted(key)?, text),
        Target::Named(first, last) => {
            let (name, text) = name_and_value(text)?;
            let key = KeyPath::new([first, name]);
            (last.map_or(key.clone(), |last| key.child(last)), text)
        }
        Target::Parameter => parameter_and_value(text)?,
    };
    Ok(Argument::Text {
        flag: flag.to_owned(),
        key,
        text: text.to_owned(),
    })
}

fn value(flag: &str, key: &str, value: Value) -> Argument {
    Argument::Value {
        flag: flag.to_owned(),
        key: KeyPath::new([key]),
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
        for (_, name, _, _, _, target, _) in FLAGS {
            let text = match target {
                Target::Named(..) => "x=1",
                Target::Parameter => "responses_create_params.x=1",
                _ => "1",
            };
            let argument = match target {
                Target::Switch(key, truth) => value(name, key, Value::Bool(*truth)),
                target => valued(name, *target, text).unwrap(),
            };
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
}
