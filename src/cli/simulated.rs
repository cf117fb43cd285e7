use crate::config::Settings;
use crate::error::Error;
use crate::sim::{Sim, SimConfig};

/// The agent that is simulated when nothing says where it is.
const AGENT: &str = "sim";

/// Starts the simulated agent where a sweep asks for it: `--agent sim`, and no address for it. It
/// serves on free ports of the loopback until it is dropped.
///
/// # Errors
/// Its settings make no sense, or it finds no port.
pub(super) async fn start(settings: &mut Settings) -> Result<Option<Sim>, Error> {
    let own = settings.agents.get(AGENT);
    let has_address =
        settings.head_server.is_some() || own.is_some_and(|agent| agent.url.is_some());
    if settings.agent.as_deref() != Some(AGENT) || has_address {
        return Ok(None);
    }
    let sim = Sim::start(config(settings)?).await?;
    settings.agents.entry(AGENT.to_owned()).or_default().url =
        sim.agent_url(AGENT).and_then(|url| url.parse().ok());
    Ok(Some(sim))
}

/// The simulation that the settings describe.
pub(super) fn config(settings: &Settings) -> Result<SimConfig, Error> {
    let table = serde_json::Value::Object(settings.sim.clone());
    serde_json::from_value(table).map_err(|error| Error::usage("[sim]", error))
}
