//! `rollstream gym eval ...`: the command lines of NeMo Gym's `gym eval ...` become those of our commands.

use std::ffi::OsString;
use std::iter::Peekable;
use std::path::{Path, PathBuf};
use std::vec::IntoIter;

use crate::error::Error;
use crate::launch::{install_root, roots};

/// What a flag of NeMo Gym becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    /// The same flag or switch: it stays as it is.
    Same,
    /// The flag of this name, with the same value.
    Flag(&'static str),
    /// The override of this name, for servers that are started here.
    Server(&'static str),
    /// The argument of the command.
    Argument,
    /// Nothing; its value is left out, too.
    Dropped,
    /// A configuration.
    Config,
    /// The configuration of this name: below a folder, in a folder of its own and there maybe in a further one.
    Named(&'static str, &'static str),
    /// Nothing is started: the servers run already.
    NoServe,
    /// The file of rollouts within the directory that is the argument.
    Within,
    /// A folder in which configurations are looked for.
    SearchDir,
}

use Meaning::{Argument, Config, Dropped, Flag, Named, NoServe, Same, SearchDir, Server, Within};

/// The flags of a command, those for configurations in the order in which NeMo Gym merges them.
type Flags = &'static [(&'static [&'static str], Meaning)];

const RUN: Flags = &[
    (&["--config"], Config),
    (&["--benchmark"], Named("benchmarks", "")),
    (&["--environment"], Named("environments", "")),
    (
        &["--resources-server"],
        Named("resources_servers", "configs"),
    ),
    (&["--model-type"], Named("responses_api_models", "configs")),
    (&["--agent-type"], Named("responses_api_agents", "configs")),
    (&["--search-dir"], SearchDir),
    (&["--no-serve"], NoServe),
    (&["--output", "-o"], Flag("--gym-output")),
    (&["--model", "-m"], Server("policy_model_name")),
    (&["--model-url"], Server("policy_base_url")),
    (&["--model-api-key"], Server("policy_api_key")),
    (&["--health-check-workers"], Dropped),
];

const AGGREGATE: Flags = &[
    (&["--config"], Dropped),
    (&["--search-dir"], Dropped),
    (&["--input-glob", "-i"], Argument),
    (&["--output", "-o"], Flag("--gym-output")),
    (&["--health-check-workers"], Dropped),
];

const PROFILE: Flags = &[
    (&["--inputs"], Flag("--materialized-inputs")),
    (&["--rollouts"], Argument),
];

const COMPARE: Flags = &[(&["-o"], Flag("--output-dir"))];

const HEALTH_CHECK: Flags = &[
    (&["--rollouts-file"], Within),
    (&["--workers"], Dropped),
    (&["--ignore"], Flag("--ignore-checks")),
];

/// Translates a command line that begins with `gym eval`; others stay as they are.
///
/// # Errors
/// The command is none of those that have a counterpart here, or a flag can't be granted.
pub(super) fn translated(arguments: Vec<OsString>) -> Result<Vec<OsString>, Error> {
    let word = |at: usize| arguments.get(at).and_then(|word| word.to_str());
    if word(1) != Some("gym") {
        return Ok(arguments);
    }
    let (ours, flags) = match (word(2), word(3)) {
        (Some("eval"), Some("run")) => ("collect", RUN),
        (Some("eval"), Some("aggregate")) => ("aggregate", AGGREGATE),
        (Some("eval"), Some("profile")) => ("profile", PROFILE),
        (Some("eval"), Some("compare")) => ("compare", COMPARE),
        (Some("eval"), Some("health-check")) => ("check", HEALTH_CHECK),
        _ => {
            return Err(Error::Usage(
                "of NeMo Gym's commands, `gym eval run`, `aggregate`, `profile`, `compare` and `health-check` work here; \
                 use NeMo Gym's own program for others"
                    .to_owned(),
            ));
        }
    };
    let mut line = Line::new(flags);
    let mut translated: Vec<OsString> = arguments.iter().take(1).cloned().collect();
    line.read(arguments.into_iter().skip(4).collect())?;
    translated.push(ours.into());
    translated.extend(line.finish(ours)?);
    Ok(translated)
}

/// A command line that is being translated.
struct Line {
    flags: Flags,
    /// What is given to our command, in order.
    given: Vec<OsString>,
    /// Overrides for servers, which mean nothing where none is started.
    of_servers: Vec<OsString>,
    /// Configurations, each with its place in the order and what its text is.
    configs: Vec<(usize, Meaning, String)>,
    search_dirs: Vec<String>,
    serves: bool,
    within: Option<String>,
}

impl Line {
    fn new(flags: Flags) -> Self {
        Self {
            flags,
            given: Vec::new(),
            of_servers: Vec::new(),
            configs: Vec::new(),
            search_dirs: Vec::new(),
            serves: true,
            within: None,
        }
    }

    fn read(&mut self, words: Vec<OsString>) -> Result<(), Error> {
        let mut words = words.into_iter().peekable();
        while let Some(word) = words.next() {
            let Some(text) = word.to_str().map(str::to_owned) else {
                self.given.push(word);
                continue;
            };
            if let Some(paths) = config_paths(&text).filter(|_| self.flags == RUN) {
                let paths = paths.into_iter().map(|path| (usize::MAX, Config, path));
                self.configs.extend(paths);
                continue;
            }
            let (name, value) = match text.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
                _ => (text.as_str(), None),
            };
            let mut flags = self.flags.iter().enumerate();
            let known = flags.find(|(_, (names, _))| names.contains(&name));
            let (place, meaning) = known.map_or((0, Same), |(at, (_, meaning))| (at, *meaning));
            self.translate(place, meaning, name, value, word, &mut words)?;
        }
        Ok(())
    }

    fn translate(
        &mut self,
        place: usize,
        meaning: Meaning,
        name: &str,
        value: Option<String>,
        word: OsString,
        words: &mut Peekable<IntoIter<OsString>>,
    ) -> Result<(), Error> {
        let mut value = || {
            let next = || words.next().and_then(|word| word.into_string().ok());
            let value = value.clone().or_else(next);
            value.ok_or_else(|| Error::Usage(format!("{name} needs a value")))
        };
        match meaning {
            Same => self.given.push(word),
            NoServe => self.serves = false,
            Dropped => {
                value()?;
            }
            Argument => self.given.push(value()?.into()),
            Flag(ours) => self.given.extend([ours.into(), value()?.into()]),
            Server(key) => {
                let value = value()?;
                self.of_servers.push(format!("+{key}={value}").into());
            }
            Config | Named(..) => self.configs.push((place, meaning, value()?)),
            SearchDir => self.search_dirs.push(value()?),
            Within => self.within = Some(value()?),
        }
        Ok(())
    }

    /// Returns the arguments of our command.
    fn finish(mut self, ours: &str) -> Result<Vec<OsString>, Error> {
        let mut arguments = Vec::new();
        if ours == "check" {
            let is_place = |word: &&mut OsString| !word.to_string_lossy().starts_with('-');
            let Some(place) = self.given.iter_mut().find(is_place) else {
                return Err(Error::Usage(
                    "`gym eval health-check` needs the directory of the rollouts".to_owned(),
                ));
            };
            let file = self.within.as_deref().unwrap_or("rollouts.jsonl");
            *place = Path::new(&*place).join(file).into();
            arguments.push("--health".into());
        }
        if ours == "collect" && !self.serves && !self.names_head_server() {
            // NeMo Gym's own address.
            arguments.extend(["--head-server".into(), "http://127.0.0.1:11000".into()]);
        }
        if self.serves {
            self.configs.sort_by_key(|(place, ..)| *place);
            let roots = roots(&self.search_dirs);
            let configs = self.configs.into_iter();
            let paths = configs.map(|(_, meaning, text)| match meaning {
                Named(parent, folder) => named_config(parent, folder, &text, &roots),
                _ => text,
            });
            let paths: Vec<String> = paths.collect();
            if !paths.is_empty() {
                arguments.push(format!("+config_paths=[{}]", paths.join(",")).into());
            }
            for folder in self.search_dirs {
                arguments.extend(["--search-dir".into(), folder.into()]);
            }
            arguments.append(&mut self.of_servers);
        }
        arguments.append(&mut self.given);
        Ok(arguments)
    }

    fn names_head_server(&self) -> bool {
        let names = |word: &OsString| {
            let word = word.to_string_lossy();
            word.trim_start_matches(['+', '-'])
                .replace('-', "_")
                .starts_with("head_server")
        };
        std::env::var_os("ROLLSTREAM_HEAD_SERVER").is_some() || self.given.iter().any(names)
    }
}

/// Reads `+config_paths=[a,b]`.
fn config_paths(text: &str) -> Option<Vec<String>> {
    let (key, list) = text.split_once('=')?;
    let list = list.strip_prefix('[')?.strip_suffix(']')?;
    let paths = list
        .split(',')
        .map(str::trim)
        .filter(|path| !path.is_empty());
    (key.trim_start_matches('+') == "config_paths").then(|| paths.map(str::to_owned).collect())
}

/// Returns the path of the configuration that `NAME` or `NAME/VARIANT` means to NeMo Gym, which looks for relative paths
/// below its own folders, too.
fn named_config(parent: &str, folder: &str, name: &str, roots: &str) -> String {
    let (server, variant) = match name.split_once('/') {
        Some((server, variant)) => (server, Some(variant)),
        None => (name, None),
    };
    if folder.is_empty() {
        let nested = format!("{parent}/{name}/config.yaml");
        return match variant {
            Some(variant) if !exists(&nested, roots) => format!("{parent}/{server}/{variant}.yaml"),
            _ => nested,
        };
    }
    format!(
        "{parent}/{server}/{folder}/{}.yaml",
        variant.unwrap_or(server)
    )
}

/// Whether NeMo Gym finds a file at a relative path.
fn exists(path: &str, roots: &str) -> bool {
    let roots = std::env::split_paths(roots).chain([PathBuf::from(".")]);
    let mut roots = roots.chain(install_root(None));
    roots.any(|root| root.join(path).is_file())
}

#[cfg(test)]
mod tests {
    use super::super::gym_keys::tests::line;

    #[test]
    fn one_word_replaced_is_our_command() {
        for (typed, meant) in [
            (
                "rollstream gym eval run --model-type vllm_model --benchmark aime24 --config my.yaml --model m \
                 --model-url http://h:1/v1 --split benchmark -o out/a.jsonl --num-repeats=4 --concurrency 8 --resume \
                 +config_paths=[b.yaml] +limit=2 --temperature 0.5",
                "rollstream collect +config_paths=[my.yaml,benchmarks/aime24/config.yaml,\
                 responses_api_models/vllm_model/configs/vllm_model.yaml,b.yaml] +policy_model_name=m \
                 +policy_base_url=http://h:1/v1 --split benchmark --gym-output out/a.jsonl --num-repeats=4 --concurrency 8 \
                 --resume +limit=2 --temperature 0.5",
            ),
            (
                "rollstream gym eval run --resources-server mcqa/hard --benchmark nowhere/pi --output=a.jsonl",
                "rollstream collect +config_paths=[benchmarks/nowhere/pi.yaml,resources_servers/mcqa/configs/hard.yaml] \
                 --gym-output a.jsonl",
            ),
            (
                "rollstream gym eval run --environment sums --search-dir one -o a.jsonl --search-dir=two",
                "rollstream collect +config_paths=[environments/sums/config.yaml] --search-dir one --search-dir two \
                 --gym-output a.jsonl",
            ),
            (
                "rollstream gym eval run --no-serve --config a.yaml --model m -i t.jsonl -o a.jsonl --head-server http://h:1",
                "rollstream collect -i t.jsonl --gym-output a.jsonl --head-server http://h:1",
            ),
            (
                "rollstream gym eval aggregate -i a*.jsonl -o all.jsonl --health-check-workers 4 --no-health-check",
                "rollstream aggregate a*.jsonl --gym-output all.jsonl --no-health-check",
            ),
            (
                "rollstream gym eval profile --inputs m.jsonl --rollouts a.jsonl",
                "rollstream profile --materialized-inputs m.jsonl a.jsonl",
            ),
            (
                "rollstream gym eval compare --baseline a.jsonl --candidates b.jsonl -o out",
                "rollstream compare --baseline a.jsonl --candidates b.jsonl --output-dir out",
            ),
            (
                "rollstream gym eval health-check results --rollouts-file a.jsonl --ignore model_call_failed",
                "rollstream check --health results/a.jsonl --ignore-checks model_call_failed",
            ),
            ("rollstream collect -o gym", "rollstream collect -o gym"),
        ] {
            assert_eq!(line(typed).unwrap(), meant);
        }
    }

    #[test]
    fn what_is_not_here_says_where_it_is() {
        assert!(
            line("rollstream gym env start")
                .unwrap_err()
                .contains("own program")
        );
        assert!(
            line("rollstream gym eval run --model")
                .unwrap_err()
                .contains("needs a value")
        );
    }
}
