//! [`Layers`]: defaults, file, environment and command line, each over the one before, become [`Resolved`].

mod environment;
mod file;
mod hydra;
mod interpolation;
mod keys;
mod overrides;
mod tree;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use serde_json::Value;

use keys::Source;
use overrides::Overrides;
use tree::{Assignment, Tree, leaves};

use super::fields::run_beside;
use super::{AgentKind, ConfigError, DEFAULT_ENVIRONMENT, Origin, Settings};
pub use environment::{BEARER_TOKEN_VARIABLE, CONFIG_VARIABLE, PREFIX};
pub(crate) use hydra::{text as typed_text, value as typed_value};
pub use interpolation::InterpolationError;
pub(crate) use interpolation::{resolve, value_at};
pub use keys::KeyPath;
pub(crate) use keys::{similar, suggestion};

/// One setting on the command line. Of two for the same key, the later wins.
#[derive(Debug, Clone, PartialEq)]
pub enum Argument {
    /// A flag with a value that is read as the setting asks.
    Text {
        /// The flag, such as `--limit`.
        flag: String,
        /// The setting.
        key: KeyPath,
        /// The value as it was typed.
        text: String,
    },
    /// A flag with a value that needs no reading.
    Value {
        /// The flag, such as `--resume`.
        flag: String,
        /// The setting.
        key: KeyPath,
        /// The value.
        value: Value,
    },
    /// `+key=value`, with one of our names or of NeMo Gym's.
    Override(String),
}

/// The layers that settings come from.
///
/// Mappings (`agents`, `responses_create_params`, `headers_env`, `sim`) merge key by key; scalars and lists replace.
#[derive(Debug, Default)]
pub struct Layers {
    file: Option<PathBuf>,
    environment: Vec<(OsString, OsString)>,
    arguments: Vec<Argument>,
}

/// Settings, and where each came from.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    /// The settings.
    pub settings: Settings,
    /// The origin of each value that is not a default, by its innermost key.
    pub origins: BTreeMap<KeyPath, Origin>,
    /// Remarks on the overrides, for a person to read.
    pub notes: Vec<String>,
    /// The overrides for NeMo Gym's programs that hold secrets. [`Settings::gym_overrides`] has the others.
    pub gym_secrets: Vec<String>,
}

impl Layers {
    /// Only the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a configuration file; it wins over the one that `ROLLSTREAM_CONFIG` names.
    #[must_use]
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.file = Some(path.into());
        self
    }

    /// Adds environment variables, such as [`std::env::vars_os`]. Only those that start with `ROLLSTREAM_` count.
    #[must_use]
    pub fn environment<N: Into<OsString>, V: Into<OsString>>(
        mut self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let variables = variables.into_iter();
        self.environment
            .extend(variables.map(|(name, value)| (name.into(), value.into())));
        self
    }

    /// Adds settings from the command line, in the order in which they were typed.
    #[must_use]
    pub fn arguments(mut self, arguments: impl IntoIterator<Item = Argument>) -> Self {
        self.arguments.extend(arguments);
        self
    }

    /// Puts the layers on top of each other, and checks the result.
    ///
    /// # Errors
    /// If a layer cannot be read, has a key that is no setting, or a value that the setting cannot have.
    pub fn resolve(self) -> Result<Resolved, ConfigError> {
        let environment = environment::read(self.environment)?;
        let mut tree = Tree::default();
        if let Some(path) = self.file.or(environment.config.map(PathBuf::from)) {
            for assignment in file::read(&path)? {
                tree.assign(assignment)?;
            }
        }
        for assignment in environment.assignments {
            tree.assign(assignment)?;
        }
        let mut overrides = Overrides::default();
        for argument in self.arguments {
            if let Some(assignment) = assignment(argument, &mut overrides)? {
                tree.assign(assignment)?;
            }
        }
        let model_agent = tree.name_model();
        let (mut settings, origins) = tree.finish()?;
        environment::refuse_unknown(&environment.unknown, &settings)?;
        let (forwarded, notes) = overrides.finish(!settings.config_paths.is_empty())?;
        settings.gym_overrides.extend(forwarded.plain);
        let mut resolved = Resolved {
            settings,
            origins,
            notes,
            gym_secrets: forwarded.secret,
        };
        resolved.place_files()?;
        resolved.complete_model(&model_agent)?;
        resolved.check()?;
        Ok(resolved)
    }
}

fn assignment(
    argument: Argument,
    overrides: &mut Overrides,
) -> Result<Option<Assignment>, ConfigError> {
    let (path, value, origin) = match argument {
        Argument::Override(text) => return overrides.read(&text),
        Argument::Value { flag, key, value } => (key, value, Origin::Flag(flag)),
        Argument::Text { flag, key, text } => {
            let origin = Origin::Flag(flag);
            let kind = keys::kind(&key, &origin)?;
            let value = keys::read(kind, &text, Source::Flag);
            let value = value.map_err(|reason| ConfigError::invalid(&key, &origin, reason))?;
            (key, value, origin)
        }
    };
    Ok(Some(Assignment {
        path,
        value,
        origin,
    }))
}

impl Resolved {
    /// The origin of the value of this key.
    pub fn origin(&self, key: &KeyPath) -> &Origin {
        self.origins.get(key).unwrap_or(&Origin::Default)
    }

    /// Every value by its innermost key, in the order of [`Settings`], with its origin. What is not set is `null`;
    /// unset options of single agents are left out, and so are mappings without entries.
    pub fn entries(&self) -> Vec<(KeyPath, Value, &Origin)> {
        let Ok(Value::Object(map)) = serde_json::to_value(&self.settings) else {
            return Vec::new();
        };
        map.into_iter()
            .flat_map(|(key, value)| leaves(KeyPath::new([key]), value))
            .filter(|(path, value)| match path.keys() {
                [root] => root == "num_repeats" || !value.is_object(),
                [root, ..] if root == "agents" => {
                    !value.is_null() && !value.as_object().is_some_and(serde_json::Map::is_empty)
                }
                _ => true,
            })
            .map(|(path, value)| {
                let origin = self.origin(&path);
                (path, value, origin)
            })
            .collect()
    }

    /// Places the run beside NeMo Gym's files if it has no place of its own. The files must be on a local disk; others
    /// are dropped with a note.
    fn place_files(&mut self) -> Result<(), ConfigError> {
        let key = KeyPath::new(["gym_output"]);
        let Some(files) = self.settings.gym_output.take() else {
            return Ok(());
        };
        let origin = self.origin(&key).clone();
        if self.settings.output.is_none() {
            let run = run_beside(&files);
            let run = run.map_err(|reason| ConfigError::invalid(&key, &origin, reason))?;
            self.settings.output = Some(run.to_owned());
            self.origins.insert(KeyPath::new(["output"]), origin);
        }
        if files.ends_with(".jsonl") && !files.contains("://") {
            self.settings.gym_output = Some(files);
        } else {
            let note = "the sweep does not end with NeMo Gym's files, which need a NAME.jsonl on a local disk; \
                        `rollstream export` writes them at any time";
            self.notes.push(note.to_owned());
        }
        Ok(())
    }

    /// Completes the agent of `--model-url`: it talks to a model, it gets the tasks, and a judge's settings make a judge.
    fn complete_model(&mut self, name: &str) -> Result<(), ConfigError> {
        let path = KeyPath::new(["agents", name]);
        let conflict = |one: &KeyPath, other: &KeyPath, remedy| {
            let named = |key: &KeyPath| {
                let is_below = |(path, origin): (&KeyPath, &Origin)| {
                    path.is_within(key).then(|| format!("`{key}` ({origin})"))
                };
                let found = self.origins.iter().find_map(is_below);
                found.unwrap_or_else(|| format!("`{key}`"))
            };
            Err(ConfigError::Conflict {
                one: named(one),
                other: named(other),
                remedy,
            })
        };
        let Some(own) = self.settings.agents.get_mut(name) else {
            return Ok(());
        };
        let is_set =
            !own.model_url.is_empty() || own.model.is_some() || !own.environments.is_empty();
        if own.kind.is_some() || !is_set {
            return Ok(());
        }
        if !own.model_url.is_empty() && own.model.as_deref().is_none_or(str::is_empty) {
            return Err(ConfigError::Missing {
                what: "the name of the model (--model NAME)",
                remedy: "the endpoint of --model-url must be told which of its models is asked; `curl URL/v1/models` lists \
                         them",
            });
        }
        own.kind = Some(AgentKind::MultiTurn);
        if let Some(Value::Object(check)) = own.environments.get_mut(DEFAULT_ENVIRONMENT) {
            let of_judge = ["model", "rubric", "url"];
            let of_judge = of_judge.into_iter().find(|key| check.contains_key(*key));
            match (check.get("kind"), of_judge) {
                (None, Some(_)) => {
                    check.insert("kind".to_owned(), "judge".into());
                }
                // Other kinds have addresses, too.
                (Some(kind), Some(key)) if kind != "judge" && key != "url" => {
                    let check = path.child("environments").child(DEFAULT_ENVIRONMENT);
                    let remedy =
                        "an answer is scored by a check or by a judge: leave one of them out";
                    return conflict(&check.child("kind"), &check.child(key), remedy);
                }
                _ => {}
            }
        }
        match self.settings.agent.as_deref() {
            None | Some("") => self.settings.agent = Some(name.to_owned()),
            Some(agent) if agent == name => {}
            Some(_) => {
                let remedy = "--model-url and the options beside it are an agent of their own: leave out the other \
                              agent, or give these settings to it, under [agents.NAME]";
                return conflict(&KeyPath::new(["agent"]), &path, remedy);
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), ConfigError> {
        let named = |key: &str| format!("`{key}` ({})", self.origin(&KeyPath::new([key])));
        let conflict = |one: &str, other: &str, remedy| {
            Err(ConfigError::Conflict {
                one: named(one),
                other: named(other),
                remedy,
            })
        };
        let settings = &self.settings;
        if settings.resume && settings.overwrite {
            let remedy = "take one of them back, for example with +overwrite=false";
            return conflict("resume", "overwrite", remedy);
        }
        if settings.split.is_some() && !settings.input.is_empty() {
            let remedy = "the input is the prepared split: leave out --split to send the rows of a file to these servers";
            return conflict("split", "input", remedy);
        }
        if settings.split.is_some() && settings.config_paths.is_empty() {
            return Err(ConfigError::Missing {
                what: "the configuration of the data sets",
                remedy: "--split prepares what NeMo Gym's configuration declares: name it with --gym-config FILE",
            });
        }
        if settings.shard.is_some() && settings.retry_invalid_judge_responses {
            let remedy = "parts of a run are rewritten, which one process does for all: resume it once without --shard first";
            return conflict("shard", "retry_invalid_judge_responses", remedy);
        }
        if settings.shard.is_some() && settings.overwrite {
            let remedy = "each process would delete what the others did: remove the run first";
            return conflict("shard", "overwrite", remedy);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Concurrency, Repeats};
    use serde_json::json;
    use std::fs;

    fn flag(key: &str, text: &str) -> Argument {
        Argument::Text {
            flag: format!("--{}", key.replace('_', "-")),
            key: KeyPath::parse(key).unwrap(),
            text: text.to_owned(),
        }
    }

    fn origin(resolved: &Resolved, key: &str) -> String {
        resolved.origin(&KeyPath::parse(key).unwrap()).to_string()
    }

    fn resolve(arguments: &[Argument]) -> Result<Resolved, ConfigError> {
        Layers::new().arguments(arguments.to_vec()).resolve()
    }

    #[test]
    fn nothing_said_gives_the_defaults() {
        let resolved = resolve(&[]).unwrap();
        assert_eq!(resolved.settings, Settings::default());
        assert_eq!(origin(&resolved, "concurrency"), "default");
    }

    #[test]
    fn the_command_line_wins_over_the_environment_over_the_file_over_the_defaults() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sweep.toml");
        let text = "limit = 1\nconcurrency = 1\nnum_repeats = 1\nagent = 'file'\n\
                    [agents.a]\nurl = 'http://file'\nconcurrency = 1\n\
                    [responses_create_params]\ntop_p = 0.5\nstop = ['a', 'b']\n";
        fs::write(&path, text).unwrap();
        let environment = [
            ("ROLLSTREAM_CONCURRENCY", "2"),
            ("ROLLSTREAM_NUM_REPEATS", "2"),
            ("ROLLSTREAM_AGENT", "environment"),
            ("ROLLSTREAM_AGENTS", "{a: {url: http://environment}}"),
            ("ROLLSTREAM_RESPONSES_CREATE_PARAMS", "{stop: [c]}"),
        ];
        let resolved = Layers::new()
            .file(&path)
            .environment(environment)
            .arguments([
                flag("num_repeats", "3"),
                flag("agent", "flag"),
                Argument::Override("+agent_name=override".into()),
            ])
            .resolve()
            .unwrap();
        let settings = &resolved.settings;
        assert_eq!(settings.max_body, Settings::default().max_body);
        assert_eq!(settings.limit, Some(1));
        assert_eq!(settings.concurrency, Concurrency::Fixed(2));
        assert_eq!(settings.num_repeats, Repeats::All(3));
        assert_eq!(settings.agent.as_deref(), Some("override"));
        let agent = &settings.agents["a"];
        assert_eq!(agent.url.as_ref().unwrap().as_str(), "http://environment");
        assert_eq!(agent.concurrency, Some(Concurrency::Fixed(1)));
        assert_eq!(
            Value::Object(settings.responses_create_params.clone()),
            json!({"top_p": 0.5, "stop": ["c"]})
        );
        assert_eq!(origin(&resolved, "max_body"), "default");
        assert_eq!(origin(&resolved, "limit"), format!("{}:1", path.display()));
        assert_eq!(origin(&resolved, "concurrency"), "ROLLSTREAM_CONCURRENCY");
        assert_eq!(origin(&resolved, "num_repeats"), "--num-repeats");
        assert_eq!(origin(&resolved, "agent"), "+agent_name");
        assert_eq!(origin(&resolved, "agents.a.url"), "ROLLSTREAM_AGENTS");
        assert_eq!(
            origin(&resolved, "agents.a.concurrency"),
            format!("{}:7", path.display())
        );
    }

    #[test]
    fn of_flags_and_overrides_the_later_wins() {
        let flag = flag("concurrency", "1");
        let other = Argument::Override("++num_samples_in_parallel=2".into());
        let settings = |arguments: &[Argument]| resolve(arguments).unwrap().settings;
        assert_eq!(
            settings(&[flag.clone(), other.clone()]).concurrency,
            Concurrency::Fixed(2)
        );
        assert_eq!(settings(&[other, flag]).concurrency, Concurrency::Fixed(1));
    }

    #[test]
    fn the_environment_can_name_the_file_and_a_flag_another() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let (toml, yaml) = (file("a.toml", "limit = 1"), file("b.yaml", "limit: 2"));
        let layers = || Layers::new().environment([("ROLLSTREAM_CONFIG", toml.clone())]);
        assert_eq!(layers().resolve().unwrap().settings.limit, Some(1));
        assert_eq!(
            layers().file(yaml).resolve().unwrap().settings.limit,
            Some(2)
        );
    }

    #[test]
    fn an_unknown_key_in_a_file_is_named_with_its_line() {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("a.toml", "limit = 1\n[agents.a]\nconcurency = 2\n"),
            ("a.yaml", "limit: 1\nagents: {a: {\n  concurency: 2}}\n"),
        ] {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            let message = Layers::new().file(&path).resolve().unwrap_err().to_string();
            assert!(message.contains(&format!("{name}:3")), "{message}");
            assert!(message.contains("did you mean `concurrency`?"), "{message}");
        }
        for (name, text) in [
            ("b.toml", "limit = 1\n[agnts.a]\nconcurrency = 2\n"),
            ("b.yaml", "limit: 1\nagnts:\n  a: {concurrency: 2}\n"),
        ] {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            let message = Layers::new().file(&path).resolve().unwrap_err().to_string();
            assert!(
                message.contains("`agnts` (") && message.contains(&format!("{name}:2")),
                "{message}"
            );
        }
    }

    #[test]
    fn resume_and_overwrite_exclude_each_other() {
        let message = resolve(&[flag("resume", "true"), flag("overwrite", "true")])
            .unwrap_err()
            .to_string();
        assert!(message.contains("`resume` (--resume)"), "{message}");
        assert!(message.contains("`overwrite` (--overwrite)"), "{message}");
    }

    #[test]
    fn an_output_named_as_a_file_becomes_a_directory() {
        let overrides = [
            "+agent_name=a",
            "+input_jsonl_fpath=x.jsonl",
            "+output_jsonl_fpath=y.jsonl",
            "+num_repeats=4",
        ];
        let settings = resolve(&overrides.map(|text| Argument::Override(text.into())))
            .unwrap()
            .settings;
        assert_eq!(settings.output.as_deref(), Some("y"));
        assert_eq!(settings.input, ["x.jsonl"]);
    }

    #[test]
    fn files_of_nemo_gym_stand_beside_local_runs_alone() {
        for (named, output, files) in [
            ("a/x.jsonl", "a/x", true),
            ("runs.v2", "runs.v2", false),
            ("s3://bucket/x.jsonl", "s3://bucket/x", false),
        ] {
            let text = format!("+output_jsonl_fpath={named}");
            let resolved = resolve(&[Argument::Override(text)]).unwrap();
            assert_eq!(resolved.settings.output.as_deref(), Some(output));
            assert_eq!(resolved.settings.gym_output.is_some(), files, "{named}");
            assert_eq!(resolved.notes.is_empty(), files, "{named}");
        }
        let nameless = Argument::Override("+output_jsonl_fpath=runs/.jsonl".into());
        assert!(resolve(&[nameless]).is_err());
    }

    #[test]
    fn entries_show_every_setting_once() {
        let resolved = resolve(&[
            flag("agents.a.url", "http://h"),
            flag("responses_create_params.a", "{b: null}"),
            flag("num_repeats", "a=1,b=2"),
        ])
        .unwrap();
        let entries: Vec<String> = resolved
            .entries()
            .into_iter()
            .map(|(path, value, origin)| format!("{path}={value} {origin}"))
            .collect();
        for line in [
            "input=[] default",
            "limit=null default",
            "num_repeats.b=2 --num-repeats",
            "responses_create_params.a.b=null --responses-create-params.a",
            "agents.a.url=\"http://h\" --agents.a.url",
            "read_timeout=\"30m\" default",
        ] {
            assert!(
                entries.iter().any(|entry| entry == line),
                "{line}: {entries:?}"
            );
        }
        assert!(!entries.iter().any(|entry| entry.starts_with("sim")
            || entry.contains("bearer_token_env=") && entry.contains("agents")));
    }
}
