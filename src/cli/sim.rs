//! `rollstream sim`: flags for the settings of [`SimConfig`], and a server with them.

use std::io::{self, Write};
use std::time::Duration;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde_json::{Map, Value, json};

use super::output::Exit;
use super::signals::interrupted;
use crate::error::Error;
use crate::http::raise_open_files;
use crate::sim::{FaultKind, Sim, SimConfig, parse_rate};

/// The options of `sim`.
#[derive(Debug, Clone)]
pub struct SimArgs {
    config: SimConfig,
    json: bool,
}

/// The options that are not derived from [`SimConfig`].
#[derive(Args)]
struct OtherArgs {
    /// A fault and its share of all requests, such as error_500=0.05; can be repeated
    #[arg(long = "fault", value_name = "KIND=RATE", value_parser = parse_rate)]
    faults: Vec<(FaultKind, f64)>,
    /// Port of the model server [default: a free one]
    #[arg(long, value_name = "PORT")]
    model_port: Option<u16>,
    /// Port of the resources server, which has tools and a verifier [default: a free one]
    #[arg(long, value_name = "PORT")]
    tools_port: Option<u16>,
    /// Port of the Gymnasium-style resources server [default: a free one]
    #[arg(long, value_name = "PORT")]
    gymnasium_port: Option<u16>,
    /// Port of the environment that is stepped in batches [default: a free one]
    #[arg(long, value_name = "PORT")]
    environment_port: Option<u16>,
    /// Print the addresses as one line of JSON
    #[arg(long)]
    json: bool,
}

impl Args for SimArgs {
    fn augment_args(command: Command) -> Command {
        // An update needs no defaults: a flag that is not given leaves its setting as it is.
        OtherArgs::augment_args(SimConfig::augment_args_for_update(command))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SimArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut config = SimConfig {
            port: PORT,
            ..SimConfig::default()
        };
        config.update_from_arg_matches(matches)?;
        let others = OtherArgs::from_arg_matches(matches)?;
        config.faults.0 = others.faults.into_iter().collect();
        config.model.port = others.model_port;
        config.tools.port = others.tools_port;
        config.gymnasium.port = others.gymnasium_port;
        config.environment.port = others.environment_port;
        Ok(Self {
            config,
            json: others.json,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The port of NeMo Gym's own head server.
const PORT: u16 = 11000;

/// How long calls in flight may take to finish when the server stops.
const GRACE: Duration = Duration::from_secs(1);

/// `rollstream sim`: serves simulated agents until it is interrupted.
pub(super) async fn sim(args: SimArgs) -> Result<Exit, Error> {
    raise_open_files();
    let as_json = args.json;
    let sim = Sim::start(args.config).await?;
    // Listens before it prints: the reader of the addresses may send a signal at once.
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
    // The error is ignored: nobody has to read the addresses.
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

/// Returns the servers besides the agents, with their addresses.
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
    use crate::sim::{AgentConfig, OverCapacity};

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        sim: SimArgs,
    }

    fn parse(flags: &[&str]) -> Result<SimConfig, String> {
        let words = std::iter::once(&"sim").chain(flags);
        Cli::try_parse_from(words)
            .map(|cli| cli.sim.config)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn no_flags_change_only_the_port() {
        let mut config = parse(&[]).unwrap();
        assert_eq!(std::mem::take(&mut config.port), PORT);
        assert_eq!(config, SimConfig::default());
    }

    #[test]
    fn every_flag_reaches_its_setting() {
        let config = parse(&[
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
        ])
        .unwrap();
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
