use std::io::{self, Write};
use std::time::Duration;

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
    let sim = Sim::start(args.apply(SimConfig {
        port: PORT,
        ..SimConfig::default()
    }))
    .await?;
    let mut output = io::stdout().lock();
    // Whoever started us in the background reads the addresses from here; a terminal shows them.
    let mut lines = vec![format!("head server  {}", sim.head_url())];
    lines.extend(
        sim.agent_urls()
            .iter()
            .map(|(name, url)| format!("agent {name}  {url}")),
    );
    for line in lines {
        // Nobody need read it.
        let _ = writeln!(output, "{line}");
    }
    let _ = output.flush();
    drop(output);
    interrupted().await?;
    sim.shutdown(GRACE).await;
    Ok(Exit::Done)
}
