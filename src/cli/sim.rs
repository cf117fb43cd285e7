use std::io::{self, Write};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::Exit;
use super::signals::interrupted;
use super::sim_args::SimArgs;
use crate::error::Error;
use crate::sim::{Sim, SimConfig};

/// Where NeMo Gym's own head server is.
const PORT: u16 = 11000;

/// Time that answers under way get when the server is stopped.
const GRACE: Duration = Duration::from_secs(1);

/// `rollstream sim`: serves until it is interrupted.
pub(super) async fn sim(args: SimArgs) -> Result<Exit, Error> {
    super::collect::raise_file_limit();
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

/// Whoever started us in the background reads the addresses from here; a terminal shows them.
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
    // Nobody need read it.
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

/// The addresses of what agents are made of.
fn servers(sim: &Sim) -> [(&'static str, &str); 4] {
    [
        ("model", sim.model_url()),
        ("tools", sim.tools_url()),
        ("gymnasium", sim.gymnasium_url()),
        ("environment", sim.environment_url()),
    ]
}
