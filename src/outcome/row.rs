use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::Answer;
use crate::call::{CallRow, RolloutKey};
use crate::retry::Failure;

/// The `outcome` of an attempt that succeeded.
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
    /// The time at which the request was sent.
    pub dispatched_at: SystemTime,
    /// The parts of the attempt's time.
    pub times: Times,
    /// The agent's limit of calls in flight at the time.
    pub concurrency_limit: Option<u32>,
    /// The calls within the attempt. None if the agent runs elsewhere.
    pub calls: Vec<CallRow>,
    /// The answer or the failure.
    pub verdict: Verdict,
}

impl Outcome {
    /// Creates an attempt of which only this is known.
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

/// The parts of an attempt's time. If the attempt was cut off, unknown parts are none.
#[derive(Debug, Default, Clone, Copy)]
pub struct Times {
    /// The wait before the dispatch.
    pub waited: Waited,
    /// The time to open a connection. If none was made, the time of the whole attempt.
    pub connect: Option<Duration>,
    /// The time from the dispatch to the head of the answer.
    pub first_byte: Option<Duration>,
    /// The time from the request, on an open connection, to the last byte. None if no connection was made.
    pub server: Option<Duration>,
    /// The time that the collector itself spent.
    pub client: Option<Duration>,
}

/// The time that a rollout waited before it was sent.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Waited {
    /// The wait for a place among the calls in flight.
    pub permit: Duration,
    /// The wait because of rate limits and pauses.
    pub rate: Duration,
}

/// The end of an attempt.
#[derive(Debug)]
pub enum Verdict {
    /// With an answer that counts as a rollout.
    Ok(Answer),
    /// With a failure.
    Failed {
        /// The failure.
        failure: Failure,
        /// Whether no further attempt follows: the rollout has failed.
        terminal: bool,
    },
}

impl Verdict {
    /// Returns the bytes of the verdict's texts.
    pub(super) fn num_bytes(&self) -> usize {
        match self {
            Self::Ok(answer) => answer.body.len() + answer.fields.info.len(),
            Self::Failed { failure, .. } => failure.answer.as_ref().map_or(0, Bytes::len),
        }
    }
}
