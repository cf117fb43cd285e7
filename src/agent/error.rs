use crate::error::{FAILURE, Fatal, USAGE};
use crate::http::ClientError;

/// The reason why the agents of a sweep can't be used. It is found before anything is sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The HTTP client could not be set up.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// An address can't be used.
    #[error("agent '{agent}': '{url}' is not an http:// or https:// address: {reason}")]
    Address {
        /// The agent.
        agent: String,
        /// The address.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The head server did not say where its agents are.
    #[error(
        "head server {url}: {reason}. Is NeMo Gym running there? Its default address is http://127.0.0.1:11000"
    )]
    HeadServer {
        /// Its address.
        url: String,
        /// What happened.
        reason: String,
    },
    /// The head server does not know an agent.
    #[error(
        "head server {url} knows no agent {unknown}. It knows: {known}. Check --agent and the rows' agent_ref"
    )]
    Unknown {
        /// Its address.
        url: String,
        /// The names that it does not know.
        unknown: String,
        /// The names that it knows.
        known: String,
    },
    /// Rows lead to no server, or to one that refuses them.
    #[error("{0}")]
    Route(String),
    /// No address is known for an agent.
    #[error(
        "no address is known for agent {agents}. If NeMo Gym serves it, name its head server (--head-server \
         http://127.0.0.1:11000 unless it was moved); else give --agent-url NAME=URL for each. `--agent sim` needs neither"
    )]
    NoAddress {
        /// The agents.
        agents: String,
    },
    /// An agent that rollstream runs itself can't be set up.
    #[error("agent '{agent}' can't be run: {reason}")]
    Native {
        /// The agent.
        agent: String,
        /// The error in its settings.
        reason: String,
    },
    /// Tasks that their agents do not take.
    #[error("{}", tasks(findings, *count))]
    Tasks {
        /// The first of them, each with file, line, agent and reason.
        findings: Vec<String>,
        /// How many there are.
        count: usize,
    },
    /// An environment variable holds no secret, or none that can be used.
    #[error("environment variable {variable}, named for {purpose}, {reason}")]
    Secret {
        /// Its name.
        variable: String,
        /// What it is for.
        purpose: String,
        /// What is wrong.
        reason: &'static str,
    },
}

/// Formats tasks that can't be rolled out.
fn tasks(findings: &[String], count: usize) -> String {
    let more = match count - findings.len() {
        0 => String::new(),
        more => format!("\nand {more} more rows like these"),
    };
    format!("{}{more}\nNothing was sent.", findings.join("\n"))
}

impl Fatal for AgentError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Client(_) | Self::HeadServer { .. } => FAILURE,
            _ => USAGE,
        }
    }
}
