use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::Answer;
use crate::call::{CallRow, RolloutKey};
use crate::retry::Failure;

/// The `outcome` of an attempt that gave a rollout.
pub const OK: &str = "ok";

/// The `outcome` of an attempt whose answer does not count: another writer's answer to the same rollout does.
pub const SUPERSEDED: &str = "superseded";

/// An attempt at a rollout that has ended.
#[derive(Debug)]
pub struct Outcome {
    /// The attempt.
    pub key: RolloutKey,
    /// Name of the agent.
    pub agent_name: Arc<str>,
    /// Status code, if HTTP gave one.
    pub http_status: Option<u16>,
    /// The response headers that matter, as the text of a JSON object.
    pub response_headers: Option<String>,
    /// When the request was sent.
    pub dispatched_at: SystemTime,
    /// Where the time went.
    pub times: Times,
    /// The agent's limit of calls in flight at the time.
    pub concurrency_limit: Option<u32>,
    /// The calls within the attempt. None if the agent runs elsewhere.
    pub calls: Vec<CallRow>,
    /// The answer, or why there is none.
    pub verdict: Verdict,
}

impl Outcome {
    /// An attempt of which only this is known.
    pub fn new(
        key: RolloutKey,
        agent_name: impl Into<Arc<str>>,
        dispatched_at: SystemTime,
        verdict: Verdict,
    ) -> Self {
        Self {
            key,
            agent_name: agent_name.into(),
            http_status: None,
            response_headers: None,
            dispatched_at,
            times: Times::default(),
            concurrency_limit: None,
            calls: Vec::new(),
            verdict,
        }
    }
}

/// Where the time of an attempt went. If the attempt was cut off, what nobody saw is none.
#[derive(Debug, Default, Clone, Copy)]
pub struct Times {
    /// Before the dispatch.
    pub waited: Waited,
    /// To open a connection. If none was made, the whole attempt.
    pub connect: Option<Duration>,
    /// From the dispatch to the head of the answer.
    pub first_byte: Option<Duration>,
    /// From the request, on an open connection, to the last byte of the answer. None if no connection was made.
    pub server: Option<Duration>,
    /// What the collector itself spent on it.
    pub client: Option<Duration>,
}

/// How long a rollout waited before it was sent.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Waited {
    /// For a place among the calls in flight.
    pub permit: Duration,
    /// For rate limits and pauses.
    pub rate: Duration,
}

/// How an attempt ended.
#[derive(Debug)]
pub enum Verdict {
    /// With an answer that counts as a rollout.
    Ok(Answer),
    /// With a failure.
    Failed {
        /// The failure.
        failure: Failure,
        /// No further attempt follows: the rollout has failed.
        terminal: bool,
    },
}

impl Verdict {
    /// Bytes of its texts.
    pub(super) fn num_bytes(&self) -> usize {
        match self {
            Self::Ok(answer) => answer.body.len() + answer.fields.info.len(),
            Self::Failed { failure, .. } => failure.answer.as_ref().map_or(0, Bytes::len),
        }
    }
}
