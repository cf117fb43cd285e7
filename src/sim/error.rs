//! [`SimError`]: why a simulated agent does not start, or does not change.

use std::io;
use std::net::SocketAddr;

use thiserror::Error;

use super::fault::FaultError;
use super::latency::LatencyError;
use crate::error::{Fatal, USAGE};

/// Why a simulated agent does not start, or does not change.
#[derive(Debug, Error)]
pub enum SimError {
    /// No agent has a name.
    #[error("the simulation has no agents: name at least one, such as agents = [\"sim\"]")]
    NoAgents,
    /// A name that no YAML key, URL or table could show.
    #[error(
        "'{0}' is no name for a simulated agent: use a name that is not empty and has no control characters"
    )]
    AgentName(String),
    /// An agent has the name of a server.
    #[error(
        "'{0}' is the name of a server that the simulation has anyway: give the agent another name"
    )]
    ReservedName(String),
    /// A setting is out of range.
    #[error("{setting} is {value}, but must be {range}")]
    Setting {
        /// Name of the setting.
        setting: String,
        /// Its value.
        value: String,
        /// What is allowed.
        range: &'static str,
    },
    /// A distribution is out of range.
    #[error(transparent)]
    Latency(#[from] LatencyError),
    /// Fault rates are out of range.
    #[error(transparent)]
    Fault(#[from] FaultError),
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
    /// There is no agent or server of this name.
    #[error("there is no simulated agent or server '{name}'; there are {known}")]
    UnknownAgent {
        /// What was asked for.
        name: String,
        /// All names.
        known: String,
    },
    /// The simulation has been told to stop.
    #[error("the simulated agent at {0} has been stopped, so that its port cannot be changed")]
    Stopped(SocketAddr),
    /// What the head server serves cannot be written down.
    #[error("the configuration of the simulated head server cannot be written: {0}")]
    Head(String),
}

impl Fatal for SimError {
    const CONTEXT: &'static str = "the simulated agent";

    fn exit_code(&self) -> u8 {
        USAGE
    }
}
