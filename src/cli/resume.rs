//! `rollstream resume`: `collect --resume` with the settings that the run itself has on record.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use clap::Args;

use super::collect::{SIMULATED, ShownArgs, carry_out};
use super::output::Exit;
use super::runs::open_recorded;
use super::sweep_args::tracker_settings;
use crate::agent::AgentError;
use crate::config::{ServerUrl, Settings};
use crate::error::Error;
use crate::schema::TASKS;
use crate::show::quoted;
use crate::status;

const EXAMPLES: &str = "\
Examples:
  rollstream resume runs/first
  rollstream resume s3://bucket/run --live

It sends what is pending, with the settings and to the addresses that run.json has on record. The tasks are those of \
the run: its input is read again only if they are damaged. Secrets come from the environment variables that the settings name. To change a \
setting, use `rollstream collect --resume`.";

/// The options of `resume`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ResumeArgs {
    /// The run: a directory or an object-store prefix
    pub run: String,
    /// What is shown.
    #[command(flatten)]
    pub shown: ShownArgs,
}

/// `rollstream resume`: goes on with a run.
pub(super) async fn resume(args: ResumeArgs) -> Result<Exit, Error> {
    let (run, record) = open_recorded(&args.run).await?;
    let mut settings = status::settings(&run, &record)?;
    let tasks = run.checked_parts(TASKS).await?;
    if tasks.damaged.is_empty() && !tasks.whole.is_empty() {
        settings.input = Vec::new();
        settings.prompt_config = None;
    }
    forget_simulated(&mut settings);
    let settings = Settings {
        output: Some(args.run),
        resume: true,
        overwrite: false,
        extend: false,
        break_lock: false,
        shard: None,
        cluster: None,
        split: None,
        ..settings.with(tracker_settings(&[])?)
    };
    let resumed = carry_out(settings, Vec::new(), &args.shown).await;
    resumed.map_err(|error| match error.cause() {
        Some(unknown @ AgentError::NoAddress { .. }) => Error::Usage(format!(
            "{unknown}. `rollstream collect --resume --output {}` takes these options",
            quoted(&run.display(""))
        )),
        _ => error,
    })
}

/// A server of this machine takes a connection within this time.
const PATIENCE: Duration = Duration::from_secs(1);

/// Drops the address of a simulated agent that ended with its collector, so that it is simulated again.
fn forget_simulated(settings: &mut Settings) {
    let simulated = settings.agents.get_mut(SIMULATED);
    if let Some(agent) = simulated
        && agent.url.as_ref().is_some_and(is_gone)
    {
        agent.url = None;
    }
}

/// Whether an address of this machine's loopback interface has no server any more.
fn is_gone(url: &ServerUrl) -> bool {
    let place = url.as_str().strip_prefix("http://127.0.0.1:");
    let port = place.and_then(|port| port.parse::<u16>().ok());
    port.is_some_and(|port| {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        TcpStream::connect_timeout(&address, PATIENCE).is_err()
    })
}
