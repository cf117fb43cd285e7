//! `rollstream sim`. Each option but `--json` is the flag of one setting of [`SimConfig`].

use std::io::{self, Write};
use std::net::IpAddr;
use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value, json};

use super::collect::raise_file_limit;
use super::output::Exit;
use super::signals::interrupted;
use crate::error::Error;
use crate::gym::GymChoice;
use crate::sim::{
    FaultAt, FaultRate, Latency, OverCapacity, Sim, SimConfig, parse_duration, parse_size,
};

/// The options of `sim`: what the simulated agents do. A flag that is not given leaves its setting as it is.
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
    /// Version of NeMo Gym whose head server this is; 0.7 tells of environment servers [default: 0.5]
    #[arg(long, value_name = "VERSION")]
    pub gym: Option<GymChoice>,
    /// Names of the agents, each on a port of its own
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub agents: Vec<String>,
    /// Everything that happens is a function of the seed and of task, rollout and attempt
    #[arg(long)]
    pub seed: Option<u64>,
    /// Time to an answer: fixed:20ms, `lognormal:MEDIAN,SIGMA[,CAP]` or `heavy-tail:MEDIAN,ALPHA[,CAP]`
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
    /// Replaces the settings of `config` for which a flag is given. `--agents` keeps the configuration of the agents that
    /// it names, and drops the others; a `--fault` replaces the rate of its kind alone; `--fault-at` comes before the
    /// places that are configured.
    pub fn apply(mut self, mut config: SimConfig) -> SimConfig {
        macro_rules! replace {
            ($($setting:ident),*) => {
                $(if let Some(value) = self.$setting { config.$setting = value; })*
            };
        }
        macro_rules! replace_if_given {
            ($($setting:ident),*) => {
                $(config.$setting = self.$setting.or(config.$setting);)*
            };
        }
        replace!(
            host,
            port,
            gym,
            seed,
            latency,
            body_size,
            difficulty,
            difficulty_spread
        );
        replace!(
            input_tokens,
            input_tokens_spread,
            output_tokens,
            output_tokens_spread
        );
        replace!(retry_after, slow_first_byte, over_capacity);
        replace_if_given!(
            advertise_host,
            fault_attempts,
            capacity,
            turns,
            context_window
        );
        config.echo &= !self.no_echo;
        if !self.agents.is_empty() {
            let own = |name: String| {
                let own = config.agents.remove(&name).unwrap_or_default();
                (name, own)
            };
            config.agents = self.agents.into_iter().map(own).collect();
        }
        let rates = self.faults.into_iter();
        config
            .faults
            .0
            .extend(rates.map(|FaultRate { kind, rate }| (kind, rate)));
        self.fault_at.append(&mut config.fault_at);
        config.fault_at = self.fault_at;
        for (port, server) in [
            (self.model_port, &mut config.model),
            (self.tools_port, &mut config.tools),
            (self.gymnasium_port, &mut config.gymnasium),
            (self.environment_port, &mut config.environment),
        ] {
            server.port = port.or(server.port);
        }
        config
    }
}

/// The port of NeMo Gym's own head server.
const PORT: u16 = 11000;

/// Time that calls in flight get when the server is stopped.
const GRACE: Duration = Duration::from_secs(1);

/// `rollstream sim`: serves simulated agents until it is interrupted.
pub(super) async fn sim(args: SimArgs) -> Result<Exit, Error> {
    raise_file_limit();
    let as_json = args.json;
    let sim = Sim::start(args.apply(SimConfig {
        port: PORT,
        ..SimConfig::default()
    }))
    .await?;
    // Whoever has read the addresses may send a signal at once.
    let (signal, ()) = tokio::join! {
        biased;
        interrupted(),
        async { tell(&sim, as_json) },
    };
    signal?;
    sim.shutdown(GRACE).await;
    Ok(Exit::Done)
}

/// Prints the addresses, for a terminal or for whoever started this process in the background.
fn tell(sim: &Sim, as_json: bool) {
    let addresses = if as_json {
        let servers: Map<String, Value> = servers(sim)
            .map(|(name, url)| (name.to_owned(), url.into()))
            .into_iter()
            .collect();
        json!({"head_server": sim.head_url(), "agents": sim.agent_urls(), "servers": servers})
            .to_string()
    } else {
        text(sim)
    };
    let mut output = io::stdout().lock();
    // Nobody has to read it.
    let _ = writeln!(output, "{addresses}").and_then(|()| output.flush());
}

fn text(sim: &Sim) -> String {
    let agents = sim.agent_urls();
    let agents = agents
        .iter()
        .map(|(name, url)| format!("\nagent {name}  {url}"));
    let servers = servers(sim).map(|(name, url)| format!("\n{name}  {url}"));
    format!("head server  {}", sim.head_url()) + &agents.collect::<String>() + &servers.concat()
}

/// The servers that agents are made of, with their addresses.
fn servers(sim: &Sim) -> [(&'static str, &str); 4] {
    [
        ("model", sim.model_url()),
        ("tools", sim.tools_url()),
        ("gymnasium", sim.gymnasium_url()),
        ("environment", sim.environment_url()),
    ]
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::sim::{AgentConfig, FaultKind};

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
