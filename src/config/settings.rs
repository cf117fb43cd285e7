//! [`Settings`]: every option of a run, typed and documented.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::{Map, Value};

use super::{Bytes, ConfigError, Repeats, SeedField, ServerUrl, Span, VariableName};

/// What a run was asked to do. It holds no secrets, only the names of environment variables that hold them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Task files: paths, globs or object-store URLs of JSONL files, read in this order.
    #[serde(deserialize_with = "one_or_many")]
    pub input: Vec<String>,
    /// The run: a directory or an object-store prefix. A `.jsonl` at its end is dropped.
    #[serde(deserialize_with = "run_location")]
    pub output: Option<String>,
    /// The agent for tasks that name none.
    pub agent: Option<String>,
    /// The number of lines to take from the input; 0 or none takes all, a negative number takes none.
    #[serde(deserialize_with = "optional_whole")]
    pub limit: Option<i64>,
    /// Rollouts per task.
    pub num_repeats: Repeats,
    /// Whether each rollout's request carries its rollout index as a seed.
    pub num_repeats_add_seed: bool,
    /// Where in the request that seed goes.
    pub seed_field: SeedField,
    /// A YAML file with `user` and `system` templates that become the request's `input`.
    pub prompt_config: Option<PathBuf>,
    /// Fields that replace those of every task's `responses_create_params`, whole values at the first level.
    pub responses_create_params: Map<String, Value>,
    /// NeMo Gym's head server, which knows the addresses of all agents.
    pub head_server: Option<ServerUrl>,
    /// Settings of single agents, by agent name.
    pub agents: BTreeMap<String, AgentSettings>,
    /// Calls in flight in all; at least 1.
    #[serde(deserialize_with = "count")]
    pub concurrency: usize,
    /// The longest time that opening a connection may take.
    pub connect_timeout: Span,
    /// The longest silence on a connection, also before the first byte of an answer.
    pub read_timeout: Span,
    /// The largest answer that is taken, in bytes after decompression.
    pub max_body: Bytes,
    /// The environment variable that holds the bearer token sent to all agents.
    pub bearer_token_env: Option<VariableName>,
    /// Headers sent to all agents: header name to the environment variable that holds the value.
    #[serde(deserialize_with = "headers")]
    pub headers_env: BTreeMap<String, VariableName>,
    /// Whether an existing run is continued.
    pub resume: bool,
    /// Whether an existing run is deleted first.
    pub overwrite: bool,
    /// The size at which a Parquet part is cut, in bytes.
    pub part_size: Bytes,
    /// The local directory for journals of runs whose output is not local.
    pub state_dir: Option<PathBuf>,
    /// Whether metrics are computed at the end.
    pub aggregate: bool,
    /// A directory whose `.sql` files replace or add to the built-in metric queries.
    pub queries: Option<PathBuf>,
    /// Settings of the simulated agent, not interpreted here.
    pub sim: Map<String, Value>,
}

/// Settings of one agent; what is absent is as for all agents.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentSettings {
    /// The agent's address; it wins over what the head server says.
    pub url: Option<ServerUrl>,
    /// Calls in flight to this agent, within the limit for all; at least 1.
    #[serde(deserialize_with = "optional_count")]
    pub concurrency: Option<usize>,
    /// The environment variable that holds this agent's bearer token.
    pub bearer_token_env: Option<VariableName>,
    /// Headers for this agent, over those for all: header name to the variable that holds the value.
    #[serde(deserialize_with = "headers")]
    pub headers_env: BTreeMap<String, VariableName>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            input: Vec::new(),
            output: None,
            agent: None,
            limit: None,
            num_repeats: Repeats::default(),
            num_repeats_add_seed: false,
            seed_field: SeedField::default(),
            prompt_config: None,
            responses_create_params: Map::new(),
            head_server: None,
            agents: BTreeMap::new(),
            concurrency: 256,
            connect_timeout: Span::from_secs(10),
            read_timeout: Span::from_secs(6 * 60 * 60),
            max_body: Bytes::from_mib(256),
            bearer_token_env: None,
            headers_env: BTreeMap::new(),
            resume: false,
            overwrite: false,
            part_size: Bytes::from_mib(128),
            state_dir: None,
            aggregate: true,
            queries: None,
            sim: Map::new(),
        }
    }
}

impl Settings {
    /// The task files, for commands that cannot do without.
    ///
    /// # Errors
    /// If there are none.
    pub fn required_input(&self) -> Result<&[String], ConfigError> {
        if self.input.is_empty() {
            return Err(ConfigError::Missing {
                what: "the input",
                remedy: "name a task file with --input tasks.jsonl",
            });
        }
        Ok(&self.input)
    }

    /// The run's place, for commands that cannot do without.
    ///
    /// # Errors
    /// If there is none.
    pub fn required_output(&self) -> Result<&str, ConfigError> {
        self.output.as_deref().ok_or(ConfigError::Missing {
            what: "the output",
            remedy: "name a directory or an object-store prefix for the run with --output runs/first",
        })
    }
}

/// A path that names one file and a list of them are both welcome.
fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    struct Visitor;
    impl<'de> de::Visitor<'de> for Visitor {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a path or a list of paths")
        }

        fn visit_str<E: de::Error>(self, path: &str) -> Result<Self::Value, E> {
            Ok(vec![path.to_owned()])
        }

        fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut paths = Vec::new();
            while let Some(path) = seq.next_element()? {
                paths.push(path);
            }
            Ok(paths)
        }
    }
    deserializer.deserialize_any(Visitor)
}

/// NeMo Gym's users name a `.jsonl` file; a run is a directory of the same name without the suffix.
fn run_location<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else {
        return Ok(None);
    };
    let location = text.strip_suffix(".jsonl").unwrap_or(&text);
    if location.is_empty() || location.ends_with(['/', '\\']) && location != text {
        return Err(de::Error::custom(format!(
            "`{text}` names no directory; write a path such as runs/first"
        )));
    }
    Ok(Some(location.to_owned()))
}

fn headers<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, VariableName>, D::Error> {
    let headers = BTreeMap::<String, VariableName>::deserialize(deserializer)?;
    // RFC 9110, section 5.6.2: a field name is a token.
    let allowed = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    match headers
        .keys()
        .find(|name| name.is_empty() || !name.chars().all(allowed))
    {
        Some(name) => Err(de::Error::custom(format!(
            "`{name}` is not the name of an HTTP header"
        ))),
        None => Ok(headers),
    }
}

fn optional_whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let number = Option::<Value>::deserialize(deserializer)?;
    number
        .map(|number| {
            number.as_i64().ok_or_else(|| {
                de::Error::custom(format!("{number} is not a whole number of 64 bits"))
            })
        })
        .transpose()
}

struct Count;

impl de::Visitor<'_> for Count {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number of at least 1")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<usize, E> {
        usize::try_from(number)
            .ok()
            .filter(|number| *number >= 1)
            .ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(number), &self))
    }
}

fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    deserializer.deserialize_any(Count)
}

fn optional_count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    #[derive(Deserialize)]
    struct One(#[serde(deserialize_with = "count")] usize);
    Ok(Option::<One>::deserialize(deserializer)?.map(|One(number)| number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(yaml: &str) -> Result<Settings, String> {
        serde_yaml_ng::from_str(yaml).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_survive_being_written_and_read() {
        let settings = read(
            "{input: a.jsonl, output: runs/a.jsonl, num_repeats: {a: 2}, concurrency: 8, max_body: 1GB,
              agents: {a: {url: 'http://h:1/', concurrency: 2, headers_env: {X-Key: KEY}}}}",
        )
        .unwrap();
        assert_eq!(settings.input, ["a.jsonl"]);
        assert_eq!(settings.output.as_deref(), Some("runs/a"));
        assert_eq!(settings.agents["a"].concurrency, Some(2));
        let text = serde_json::to_string(&settings).unwrap();
        assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), settings);
    }

    #[test]
    fn senseless_values_are_refused() {
        for (yaml, expected) in [
            ("concurrency: 0", "a whole number of at least 1"),
            ("limit: some", "\"some\" is not a whole number"),
            ("limit: 1.5", "1.5 is not a whole number"),
            ("concurrency: many", "a whole number of at least 1"),
            (
                "agents: {a: {concurrency: 0}}",
                "a whole number of at least 1",
            ),
            (
                "headers_env: {'X Key': K}",
                "not the name of an HTTP header",
            ),
            ("output: .jsonl", "names no directory"),
            ("output: runs/.jsonl", "names no directory"),
            ("output: ''", "names no directory"),
            ("input: 4", "a path or a list of paths"),
        ] {
            let message = read(yaml).unwrap_err();
            assert!(message.contains(expected), "{yaml}: {message}");
        }
    }

    #[test]
    fn what_a_collection_needs_is_asked_for() {
        let mut settings = Settings::default();
        assert!(
            settings
                .required_input()
                .unwrap_err()
                .to_string()
                .contains("--input")
        );
        assert!(
            settings
                .required_output()
                .unwrap_err()
                .to_string()
                .contains("--output")
        );
        settings.input.push("a".into());
        settings.output = Some("b".into());
        assert_eq!(settings.required_input().unwrap(), ["a"]);
        assert_eq!(settings.required_output().unwrap(), "b");
    }
}
