//! Flags of the simulation: [`SimArgs`], each but `--json` the flag of one setting of [`SimConfig`].

use std::net::IpAddr;
use std::time::Duration;

use clap::Args;

use crate::gym::GymChoice;
use crate::sim::{
    AgentConfig, FaultAt, FaultRate, Latency, OverCapacity, SimConfig, parse_duration, parse_size,
};

/// What the simulated agents do. A flag that is not given leaves its setting as it is.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub struct SimArgs {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS")]
    pub host: Option<IpAddr>,
    /// Port of the head server [default: 11000]; 0 takes a free one
    #[arg(long)]
    pub port: Option<u16>,
    /// Host under which the head server tells clients to reach the agents
    #[arg(long, value_name = "HOST")]
    pub advertise_host: Option<String>,
    /// Version of NeMo Gym whose head server this is: 0.5 [default], or 0.7, which tells of environment servers
    #[arg(long, value_name = "VERSION")]
    pub gym: Option<GymChoice>,
    /// Names of the agents, each on a port of its own
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub agents: Vec<String>,
    /// Everything that happens is a function of the seed and of task, rollout and attempt
    #[arg(long)]
    pub seed: Option<u64>,
    /// Time to an answer: fixed:20ms, lognormal:MEDIAN,SIGMA[,CAP] or heavy-tail:MEDIAN,ALPHA[,CAP]
    #[arg(long, value_name = "DISTRIBUTION")]
    pub latency: Option<Latency>,
    /// Size of a whole answer, such as 20KB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub body_size: Option<usize>,
    /// Leave the row's fields out of the answers
    #[arg(long)]
    pub no_echo: bool,
    /// Share of wrong answers at the median task, from 0 to 1
    #[arg(long, value_name = "SHARE")]
    pub difficulty: Option<f64>,
    /// How unlike the tasks are: standard deviation of the log-odds of success
    #[arg(long, value_name = "LOG-ODDS")]
    pub difficulty_spread: Option<f64>,
    /// Mean number of input tokens
    #[arg(long, value_name = "TOKENS")]
    pub input_tokens: Option<f64>,
    /// Standard deviation of the number of input tokens
    #[arg(long, value_name = "TOKENS")]
    pub input_tokens_spread: Option<f64>,
    /// Mean number of output tokens
    #[arg(long, value_name = "TOKENS")]
    pub output_tokens: Option<f64>,
    /// Standard deviation of the number of output tokens
    #[arg(long, value_name = "TOKENS")]
    pub output_tokens_spread: Option<f64>,
    /// A fault and its share of all requests, such as error_500=0.05; can be repeated
    #[arg(long = "fault", value_name = "KIND=RATE")]
    pub faults: Vec<FaultRate>,
    /// A fault at an exact place, such as 3:0=reset; can be repeated
    #[arg(long, value_name = "TASK[:ROLLOUT[:ATTEMPT]]=KIND")]
    pub fault_at: Vec<FaultAt>,
    /// Attempts from this number on have no fault, so that retries succeed
    #[arg(long, value_name = "N")]
    pub fault_attempts: Option<u64>,
    /// How long a 429 or a 503 asks the client to wait
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub retry_after: Option<Duration>,
    /// What a slow first byte adds to the latency
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub slow_first_byte: Option<Duration>,
    /// Rollouts that an agent works on at a time
    #[arg(long, value_name = "N")]
    pub capacity: Option<usize>,
    /// What happens to a request beyond the capacity
    #[arg(long, value_name = "POLICY")]
    pub over_capacity: Option<OverCapacity>,
    /// Turns in which the model calls tools before it answers [default: drawn from 1 to 4]
    #[arg(long, value_name = "N")]
    pub turns: Option<u64>,
    /// Tokens that a prompt and its answer can have together; the model refuses more
    #[arg(long, value_name = "TOKENS")]
    pub context_window: Option<u64>,
    /// Port of the model server [default: a free one]
    #[arg(long, value_name = "PORT")]
    pub model_port: Option<u16>,
    /// Port of the resources server, which has tools and a verifier [default: a free one]
    #[arg(long, value_name = "PORT")]
    pub tools_port: Option<u16>,
    /// Port of the resources server in the manner of Gymnasium [default: a free one]
    #[arg(long, value_name = "PORT")]
    pub gymnasium_port: Option<u16>,
    /// Port of the environment that is stepped in batches [default: a free one]
    #[arg(long, value_name = "PORT")]
    pub environment_port: Option<u16>,
    /// Print the addresses as one line of JSON
    #[arg(long)]
    pub json: bool,
}

impl SimArgs {
    /// `config` with the settings that the flags give. `--agents` keeps what the configuration
    /// says of an agent that it names, and drops the others; a `--fault` replaces the rate of its
    /// kind alone; `--fault-at` comes before the places that are configured.
    pub fn apply(self, config: SimConfig) -> SimConfig {
        let Self {
            host,
            port,
            advertise_host,
            gym,
            agents,
            seed,
            latency,
            body_size,
            no_echo,
            difficulty,
            difficulty_spread,
            input_tokens,
            input_tokens_spread,
            output_tokens,
            output_tokens_spread,
            faults,
            mut fault_at,
            fault_attempts,
            retry_after,
            slow_first_byte,
            capacity,
            over_capacity,
            turns,
            context_window,
            model_port,
            tools_port,
            gymnasium_port,
            environment_port,
            json: _,
        } = self;
        let at = |port: Option<u16>, own: AgentConfig| AgentConfig {
            port: port.or(own.port),
            ..own
        };
        let mut known = config.agents;
        let agents = if agents.is_empty() {
            known
        } else {
            let own = |name: String| {
                let own = known.remove(&name).unwrap_or_default();
                (name, own)
            };
            agents.into_iter().map(own).collect()
        };
        let mut rates = config.faults;
        rates.0.extend(
            faults
                .into_iter()
                .map(|FaultRate { kind, rate }| (kind, rate)),
        );
        fault_at.extend(config.fault_at);
        SimConfig {
            host: host.unwrap_or(config.host),
            port: port.unwrap_or(config.port),
            advertise_host: advertise_host.or(config.advertise_host),
            gym: gym.unwrap_or(config.gym),
            agents,
            seed: seed.unwrap_or(config.seed),
            latency: latency.unwrap_or(config.latency),
            body_size: body_size.unwrap_or(config.body_size),
            echo: config.echo && !no_echo,
            difficulty: difficulty.unwrap_or(config.difficulty),
            difficulty_spread: difficulty_spread.unwrap_or(config.difficulty_spread),
            input_tokens: input_tokens.unwrap_or(config.input_tokens),
            input_tokens_spread: input_tokens_spread.unwrap_or(config.input_tokens_spread),
            output_tokens: output_tokens.unwrap_or(config.output_tokens),
            output_tokens_spread: output_tokens_spread.unwrap_or(config.output_tokens_spread),
            faults: rates,
            fault_at,
            fault_attempts: fault_attempts.or(config.fault_attempts),
            retry_after: retry_after.unwrap_or(config.retry_after),
            slow_first_byte: slow_first_byte.unwrap_or(config.slow_first_byte),
            capacity: capacity.or(config.capacity),
            over_capacity: over_capacity.unwrap_or(config.over_capacity),
            turns: turns.or(config.turns),
            context_window: context_window.or(config.context_window),
            model: at(model_port, config.model),
            tools: at(tools_port, config.tools),
            gymnasium: at(gymnasium_port, config.gymnasium),
            environment: at(environment_port, config.environment),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::sim::FaultKind;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        sim: SimArgs,
    }

    fn parse(flags: &[&str]) -> Result<SimArgs, String> {
        let words = std::iter::once(&"sim").chain(flags);
        Cli::try_parse_from(words)
            .map(|cli| cli.sim)
            .map_err(|error| error.to_string())
    }

    fn applied(flags: &[&str]) -> SimConfig {
        parse(flags).unwrap().apply(SimConfig::default())
    }

    #[test]
    fn no_flags_change_nothing() {
        assert_eq!(applied(&[]), SimConfig::default());
    }

    #[test]
    fn every_flag_reaches_its_setting() {
        let config = applied(&[
            "--host=::1",
            "--port=11000",
            "--advertise-host=box",
            "--gym=0.7",
            "--agents=a,b",
            "--seed=9",
            "--latency=lognormal:200ms,1.0",
            "--body-size=20KB",
            "--no-echo",
            "--difficulty=0.1",
            "--difficulty-spread=0.2",
            "--input-tokens=1",
            "--input-tokens-spread=2",
            "--output-tokens=3",
            "--output-tokens-spread=4",
            "--fault=error_500=0.05",
            "--fault=hang=0.01",
            "--fault-at=3:0=reset",
            "--fault-attempts=2",
            "--retry-after=3s",
            "--slow-first-byte=250ms",
            "--capacity=5",
            "--over-capacity=refuse",
            "--turns=20",
            "--context-window=4096",
            "--model-port=8000",
            "--tools-port=8001",
            "--gymnasium-port=8002",
            "--environment-port=8003",
        ]);
        let at = |port| AgentConfig {
            port: Some(port),
            ..AgentConfig::default()
        };
        let expected = SimConfig {
            host: "::1".parse().unwrap(),
            port: 11000,
            advertise_host: Some("box".into()),
            gym: "0.7".parse().unwrap(),
            agents: ["a", "b"]
                .map(|name| (name.into(), AgentConfig::default()))
                .into(),
            seed: 9,
            latency: "lognormal:200ms,1.0".parse().unwrap(),
            body_size: 20_000,
            echo: false,
            difficulty: 0.1,
            difficulty_spread: 0.2,
            input_tokens: 1.0,
            input_tokens_spread: 2.0,
            output_tokens: 3.0,
            output_tokens_spread: 4.0,
            faults: crate::sim::FaultRates(
                [(FaultKind::Error500, 0.05), (FaultKind::Hang, 0.01)].into(),
            ),
            fault_at: vec!["3:0=reset".parse().unwrap()],
            fault_attempts: Some(2),
            retry_after: Duration::from_secs(3),
            slow_first_byte: Duration::from_millis(250),
            capacity: Some(5),
            over_capacity: OverCapacity::Refuse,
            turns: Some(20),
            context_window: Some(4096),
            model: at(8000),
            tools: at(8001),
            gymnasium: at(8002),
            environment: at(8003),
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn named_agents_keep_what_is_configured_of_them() {
        let mut config = SimConfig::default();
        let own = AgentConfig {
            capacity: Some(2),
            ..AgentConfig::default()
        };
        config.agents.insert("own".into(), own.clone());
        let config = parse(&["--agents", "own,new"]).unwrap().apply(config);
        assert_eq!(config.agents["own"], own);
        assert_eq!(config.agents.keys().collect::<Vec<_>>(), ["new", "own"]);
    }

    #[test]
    fn errors_tell_what_to_write() {
        for (flag, fragment) in [
            ("--latency=20ms", "write fixed:20ms, lognormal:MEDIAN,SIGMA"),
            ("--body-size=big", "'big' is not a size"),
            ("--retry-after=3", "'3' is not a duration"),
            ("--fault=gremlin=0.1", "there is no fault 'gremlin'"),
            ("--over-capacity=panic", "[possible values: wait, refuse]"),
            ("--fault-at=reset", "write TASK[:ROLLOUT[:ATTEMPT]]=KIND"),
        ] {
            let error = parse(&[flag]).unwrap_err();
            assert!(error.contains(fragment), "{flag}: {error}");
        }
    }
}
