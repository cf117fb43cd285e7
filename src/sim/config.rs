//! The settings of a simulation: [`SimConfig`], whose flat keys come from a table `[sim]` or flags; [`AgentConfig`],
//! the settings of a single agent or server; and [`SimError`].

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;
use thiserror::Error;

use super::fault::{FaultAt, FaultRates};
use super::latency::{self, Latency};
use super::plan::Profile;
use super::server::RESERVED_NAMES;
use crate::error::{Fatal, USAGE};
use crate::gym::GymChoice;

/// The largest `body_size`, in bytes.
const MAX_BODY_SIZE: usize = 256 << 20;

/// A simulation: a head server, its agents, a model and environments. Each setting is a key of the table `[sim]` and,
/// except for those of single agents and the fault rates, a flag.
#[derive(Debug, Clone, PartialEq, Deserialize, Args)]
#[serde(default, deny_unknown_fields)]
pub struct SimConfig {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS")]
    pub host: IpAddr,
    /// Port of the head server [default: 11000]; 0 takes a free one
    #[arg(long)]
    pub port: u16,
    /// Host under which the head server tells clients to reach the agents
    // If missing: `host`, or the loopback address if `host` means all addresses.
    #[arg(long, value_name = "HOST")]
    pub advertise_host: Option<String>,
    /// Version of NeMo Gym that the head server simulates; 0.7 has environment servers [default: 0.5]
    #[arg(long, value_name = "VERSION")]
    pub gym: GymChoice,
    /// Names of the agents, each on a port of its own
    // In a file also a table of names and the settings of each.
    #[arg(long, value_name = "NAMES", value_parser = agent_names)]
    #[serde(deserialize_with = "agents")]
    pub agents: BTreeMap<String, AgentConfig>,
    /// Seed: what happens depends only on the seed and on task, rollout and attempt
    #[arg(long)]
    pub seed: u64,
    /// Time to an answer: fixed:20ms, `lognormal:MEDIAN,SIGMA[,CAP]` or `heavy-tail:MEDIAN,ALPHA[,CAP]`
    #[arg(long, value_name = "DISTRIBUTION")]
    pub latency: Latency,
    /// Size of a whole answer, such as 20KB
    // In bytes, reached with filler. An answer that is larger without filler stays as it is.
    #[arg(long, value_name = "SIZE", value_parser = latency::parse_size)]
    #[serde(deserialize_with = "latency::size")]
    pub body_size: usize,
    /// Leave the row's fields out of the answers
    // A real agent's answer repeats them.
    #[arg(long = "no-echo", action = ArgAction::SetFalse)]
    pub echo: bool,
    /// Share of wrong answers at the median task, from 0 to 1
    #[arg(long, value_name = "SHARE")]
    pub difficulty: f64,
    /// Standard deviation of the log-odds of success over tasks
    #[arg(long, value_name = "LOG-ODDS")]
    pub difficulty_spread: f64,
    /// Mean number of input tokens
    // A task has the same number in all its rollouts.
    #[arg(long, value_name = "TOKENS")]
    pub input_tokens: f64,
    /// Standard deviation of the number of input tokens
    #[arg(long, value_name = "TOKENS")]
    pub input_tokens_spread: f64,
    /// Mean number of output tokens
    #[arg(long, value_name = "TOKENS")]
    pub output_tokens: f64,
    /// Standard deviation of the number of output tokens
    // Over rollouts.
    #[arg(long, value_name = "TOKENS")]
    pub output_tokens_spread: f64,
    /// Share of requests with each fault, from 0 to 1. The shares sum to 1 at most.
    #[arg(skip)]
    pub faults: FaultRates,
    /// A fault at an exact place, such as 3:0=reset; can be repeated
    // The first that matches takes precedence over all rates.
    #[arg(long, value_name = "TASK[:ROLLOUT[:ATTEMPT]]=KIND")]
    pub fault_at: Vec<FaultAt>,
    /// Attempts from this number on have no fault, so that retries succeed
    // Places in `fault_at` that name their attempt are not affected.
    #[arg(long, value_name = "N")]
    pub fault_attempts: Option<u64>,
    /// How long a 429 or a 503 asks the client to wait
    // `Retry-After` in whole seconds, rounded up, or the header of another fault.
    #[arg(long, value_name = "TIME", value_parser = latency::parse_duration)]
    #[serde(deserialize_with = "latency::duration")]
    pub retry_after: Duration,
    /// Delay that the fault slow_first_byte adds to the latency
    #[arg(long, value_name = "TIME", value_parser = latency::parse_duration)]
    #[serde(deserialize_with = "latency::duration")]
    pub slow_first_byte: Duration,
    /// Rollouts that an agent works on at a time
    #[arg(long, value_name = "N")]
    pub capacity: Option<usize>,
    /// What happens to a request beyond the capacity
    #[arg(long, value_name = "POLICY")]
    pub over_capacity: OverCapacity,
    /// Turns in which the model calls tools before it answers [default: drawn from 1 to 4]
    // Without tools: all turns, the one of the answer included.
    #[arg(long, value_name = "N")]
    pub turns: Option<u64>,
    /// Tokens that a prompt and its answer can have together; the model refuses more
    #[arg(long, value_name = "TOKENS")]
    pub context_window: Option<u64>,
    /// Settings of the model server, which ignores `body_size`.
    #[arg(skip)]
    pub model: AgentConfig,
    /// Settings of the resources server.
    #[arg(skip)]
    pub tools: AgentConfig,
    /// Settings of the Gymnasium-style server.
    #[arg(skip)]
    pub gymnasium: AgentConfig,
    /// Settings of the environment server.
    #[arg(skip)]
    pub environment: AgentConfig,
}

fn agent_names(names: &str) -> Result<BTreeMap<String, AgentConfig>, Infallible> {
    let names = names.split(',');
    Ok(names
        .map(|name| (name.to_owned(), AgentConfig::default()))
        .collect())
}

/// What happens to a request beyond the capacity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum OverCapacity {
    /// It waits in line.
    #[default]
    Wait,
    /// It is refused at once: 429 with `Retry-After`.
    Refuse,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            advertise_host: None,
            gym: GymChoice::Auto,
            agents: BTreeMap::from([("sim".to_owned(), AgentConfig::default())]),
            seed: 0,
            latency: Latency::LogNormal {
                median: Duration::from_millis(20),
                sigma: 0.6,
                cap: None,
            },
            body_size: 2000,
            echo: true,
            difficulty: 0.4,
            difficulty_spread: 1.2,
            input_tokens: 300.0,
            input_tokens_spread: 100.0,
            output_tokens: 500.0,
            output_tokens_spread: 250.0,
            faults: FaultRates::default(),
            fault_at: Vec::new(),
            fault_attempts: None,
            retry_after: Duration::from_secs(1),
            slow_first_byte: Duration::from_secs(1),
            capacity: None,
            over_capacity: OverCapacity::Wait,
            turns: None,
            context_window: None,
            model: AgentConfig::default(),
            tools: AgentConfig::default(),
            gymnasium: AgentConfig::default(),
            environment: AgentConfig::default(),
        }
    }
}

/// The settings of one agent or server. A missing setting takes the value in [`SimConfig`].
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentConfig {
    /// Port. Missing or 0: a free one.
    pub port: Option<u16>,
    /// As [`SimConfig::latency`].
    pub latency: Option<Latency>,
    /// As [`SimConfig::body_size`].
    #[serde(deserialize_with = "latency::optional_size")]
    pub body_size: Option<usize>,
    /// As [`SimConfig::difficulty`].
    pub difficulty: Option<f64>,
    /// Replaces all of [`SimConfig::faults`].
    pub faults: Option<FaultRates>,
    /// Replaces all of [`SimConfig::fault_at`].
    pub fault_at: Option<Vec<FaultAt>>,
    /// As [`SimConfig::fault_attempts`].
    pub fault_attempts: Option<u64>,
    /// As [`SimConfig::capacity`].
    pub capacity: Option<usize>,
    /// As [`SimConfig::over_capacity`].
    pub over_capacity: Option<OverCapacity>,
}

impl SimConfig {
    /// Checks the ranges of all settings.
    ///
    /// # Errors
    /// The first setting that is out of range, by name.
    pub fn check(&self) -> Result<(), SimError> {
        if self.agents.is_empty() {
            let none =
                "the simulation has no agents: name at least one, such as agents = [\"sim\"]";
            return Err(SimError::Setting(none.to_owned()));
        }
        self.check_ranges("")?;
        for (name, agent) in &self.agents {
            if name.is_empty() || name.chars().any(char::is_control) {
                return Err(SimError::Setting(format!(
                    "'{name}' cannot name a simulated agent: use a non-empty name without control characters"
                )));
            }
            if RESERVED_NAMES.contains(&name.as_str()) {
                return Err(SimError::Setting(format!(
                    "'{name}' is the name of a server that every simulation has: give the agent another name"
                )));
            }
            self.check_own(&format!("agents.{name}."), agent)?;
        }
        self.check_own("model.", &self.model)?;
        self.check_own("tools.", &self.tools)?;
        self.check_own("gymnasium.", &self.gymnasium)?;
        self.check_own("environment.", &self.environment)
    }

    fn check_own(&self, table: &str, own: &AgentConfig) -> Result<(), SimError> {
        Profile::with(self, own.clone()).check_ranges(table)
    }

    fn check_ranges(&self, table: &str) -> Result<(), SimError> {
        let name = |setting: &str| format!("{table}{setting}");
        let (difficulty, size) = (self.difficulty, self.body_size);
        let is_share = (0.0..=1.0).contains(&difficulty);
        check(is_share, &name("difficulty"), difficulty, "from 0 to 1")?;
        for (setting, value) in [
            ("difficulty_spread", self.difficulty_spread),
            ("input_tokens", self.input_tokens),
            ("input_tokens_spread", self.input_tokens_spread),
            ("output_tokens", self.output_tokens),
            ("output_tokens_spread", self.output_tokens_spread),
        ] {
            let is_amount = (0.0..=1e12).contains(&value);
            check(is_amount, &name(setting), value, "from 0 to 1e12")?;
        }
        let fits = size <= MAX_BODY_SIZE;
        check(fits, &name("body_size"), size, "256 MiB at most")?;
        check_capacity(&name("capacity"), self.capacity)?;
        self.faults.check().map_err(SimError::Setting)
    }
}

pub(super) fn check_capacity(setting: &str, capacity: Option<usize>) -> Result<(), SimError> {
    let capacity = capacity.unwrap_or(1);
    let is_good = (1..=tokio::sync::Semaphore::MAX_PERMITS).contains(&capacity);
    check(
        is_good,
        setting,
        capacity,
        "at least 1; leave it out for no limit",
    )
}

fn check(
    is_good: bool,
    setting: &str,
    value: impl ToString,
    range: &'static str,
) -> Result<(), SimError> {
    if is_good {
        return Ok(());
    }
    let value = value.to_string();
    Err(SimError::Setting(format!(
        "{setting} is {value}, but must be {range}"
    )))
}

/// Reads a list of agent names, or a table of agents by name, for serde.
fn agents<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, AgentConfig>, D::Error> {
    match Value::deserialize(from)? {
        Value::Array(names) => {
            let agent = |name| Ok((serde_json::from_value(name)?, AgentConfig::default()));
            let agents = names.into_iter().map(agent);
            agents.collect::<serde_json::Result<_>>()
        }
        table => serde_json::from_value(table),
    }
    .map_err(|error| {
        let expected = "expected a list of agent names, or a table of agents by name";
        de::Error::custom(format!("{error}; {expected}"))
    })
}

/// Why a simulation does not start or cannot be changed.
#[derive(Debug, Error)]
pub enum SimError {
    /// No simulation can have this setting.
    #[error("{0}")]
    Setting(String),
    /// An address cannot be listened on.
    #[error(
        "the simulation cannot listen on {address}: {source}; choose another host or port, or port 0 for a free one"
    )]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// No agent or server has this name.
    #[error("there is no simulated agent or server '{name}'; there are {known}")]
    UnknownAgent {
        /// What was asked for.
        name: String,
        /// All names.
        known: String,
    },
    /// The simulation has stopped.
    #[error("the simulated agent at {0} has stopped, so its port cannot be changed")]
    Stopped(SocketAddr),
    /// The configuration of the head server cannot be written as YAML.
    #[error("the configuration of the simulated head server cannot be written: {0}")]
    Head(#[from] serde_yaml_ng::Error),
}

impl Fatal for SimError {
    const CONTEXT: &'static str = "the simulated agent";

    fn exit_code(&self) -> u8 {
        USAGE
    }
}

#[cfg(test)]
mod tests {
    use super::super::fault::FaultKind;
    use super::*;

    #[test]
    fn a_toml_table_fills_every_kind_of_setting() {
        let config: SimConfig = toml::from_str(
            r#"
            seed = 7
            latency = "lognormal:200ms,1.0"
            body_size = "20KB"
            slow_first_byte = "250ms"
            faults = { error_500 = 0.05, hang = 0.01 }
            fault_at = [{ task = 3, rollout = 0, kind = "reset" }]
            fault_attempts = 1
            [agents.quick]
            latency = "fixed:1ms"
            body_size = 700
            [agents.narrow]
            capacity = 2
            over_capacity = "refuse"
            [model]
            port = 8000
            faults = { hang = 0.5 }
            "#,
        )
        .unwrap();
        assert_eq!(config.body_size, 20_000);
        assert_eq!(config.slow_first_byte, Duration::from_millis(250));
        assert_eq!(config.faults.0[&FaultKind::Error500], 0.05);
        assert_eq!(config.fault_at[0].attempt, None);
        assert_eq!(config.agents["quick"].body_size, Some(700));
        assert_eq!(config.agents["narrow"].capacity, Some(2));
        assert_eq!(
            config.agents["narrow"].over_capacity,
            Some(OverCapacity::Refuse)
        );
        assert_eq!(config.over_capacity, OverCapacity::Wait);
        assert_eq!(config.model.port, Some(8000));
        assert_eq!(config.tools, AgentConfig::default());
        assert!(!config.agents.contains_key("sim"));
        config.check().unwrap();
    }

    #[test]
    fn unknown_keys_are_refused() {
        for text in ["sed = 1", "agents.a.latencies = 1", "faults.gremlin = 0.1"] {
            let error = toml::from_str::<SimConfig>(text).unwrap_err().to_string();
            assert!(error.contains("unknown"), "{error}");
        }
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        for (text, fragment) in [
            ("agents = []", "has no agents"),
            ("agents = [\"\"]", "cannot name"),
            (
                "agents = [\"sim_model\"]",
                "'sim_model' is the name of a server",
            ),
            ("model.capacity = 0", "model.capacity is 0"),
            ("environment.faults = { hang = 2 }", "rate of 'hang' is 2"),
            (
                "difficulty = 1.5",
                "difficulty is 1.5, but must be from 0 to 1",
            ),
            ("output_tokens = nan", "output_tokens is NaN"),
            ("body_size = \"1GB\"", "body_size is 1000000000"),
            ("capacity = 0", "capacity is 0, but must be at least 1"),
            ("agents.x.capacity = 0", "agents.x.capacity is 0"),
            ("faults = { hang = 0.7, reset = 0.7 }", "sum to 1.4"),
            ("agents.x.faults = { hang = 2 }", "rate of 'hang' is 2"),
        ] {
            let config: SimConfig = toml::from_str(text).unwrap();
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(fragment), "{text}: {error}");
        }
    }

    #[test]
    fn agents_can_be_a_mere_list() {
        let config: SimConfig = serde_yaml_ng::from_str("agents: [b, a]").unwrap();
        assert_eq!(config.agents.keys().collect::<Vec<_>>(), ["a", "b"]);
    }
}
