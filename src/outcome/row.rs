use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::answer::AnswerFields;
use crate::turn::{RolloutKey, Turn};

/// The outcome of an attempt that gave a rollout.
pub const OK: &str = "ok";

/// The outcome of an attempt whose answer does not count, since another writer's answer to the same rollout does.
pub const SUPERSEDED: &str = "superseded";

/// An attempt at a rollout, finished.
#[derive(Debug)]
pub struct Outcome {
    /// Index of the task.
    pub task_index: i64,
    /// Index of the rollout within the task.
    pub rollout_index: i64,
    /// Number of the attempt, from 0.
    pub attempt: u32,
    /// The agent that was asked.
    pub agent_name: Arc<str>,
    /// Status code, where HTTP gave one.
    pub http_status: Option<u16>,
    /// Headers of the response that matter, as the text of a JSON object.
    pub response_headers: Option<String>,
    /// When the request was sent.
    pub dispatched_at: SystemTime,
    /// Where the time went.
    pub times: Times,
    /// Calls that were allowed in flight to the agent.
    pub concurrency_limit: Option<u32>,
    /// The calls within it; none where the agent runs elsewhere.
    pub turns: Vec<Turn>,
    /// The answer, or why there is none.
    pub verdict: Verdict,
}

impl Outcome {
    /// The attempt.
    pub fn key(&self) -> RolloutKey {
        RolloutKey {
            task_index: self.task_index,
            rollout_index: self.rollout_index,
            attempt: self.attempt,
        }
    }
}

/// Where the time of an attempt went. What nobody saw of one that was cut off is none.
#[derive(Debug, Default, Clone, Copy)]
pub struct Times {
    /// How long the rollout waited for its turn.
    pub permit_wait: Duration,
    /// How long rate limits held it back.
    pub rate_wait: Duration,
    /// What opening a connection took; all the time of an attempt for which none came about.
    pub connect: Option<Duration>,
    /// From the dispatch to the head of the answer.
    pub first_byte: Option<Duration>,
    /// From the request, on an open connection, to the last byte of the answer; none where there was no connection.
    pub server: Option<Duration>,
    /// What the collector itself spent on it.
    pub client: Option<Duration>,
}

/// How an attempt ended.
#[derive(Debug)]
pub enum Verdict {
    /// An answer with a reward.
    Ok(Answered),
    /// No rollout came of it.
    Failed {
        /// Name of the failure's class.
        class: &'static str,
        /// What went wrong, in words.
        error: String,
        /// The rollout is given up.
        terminal: bool,
        /// The agent said never again.
        failure_terminal: bool,
        /// What was answered, as in [`Failure`](crate::retry::Failure). Valid UTF-8, or the row is refused.
        answer: Option<Bytes>,
    },
}

/// An answer as it is kept.
#[derive(Debug)]
pub struct Answered {
    /// The whole body. Valid UTF-8, or the row is refused.
    pub result: Bytes,
    /// The numbers that were found in it.
    pub fields: AnswerFields,
}
