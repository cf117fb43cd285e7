use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::Failure;
use crate::answer::AnswerFields;

/// Somebody who answers rollouts.
///
/// A call that is dropped must leave nothing behind: no task, no request in flight.
#[async_trait]
pub trait Agent: Debug + Send + Sync {
    /// Sends one rollout and waits for what becomes of it.
    async fn run(&self, request: RolloutRequest) -> Reply;

    /// Where the agent is, without secrets, for people to read.
    fn address(&self) -> &str;
}

/// A rollout as it is sent.
#[derive(Debug, Clone)]
pub struct RolloutRequest {
    /// Index of the task.
    pub task_index: i64,
    /// Index of the rollout within the task.
    pub rollout_index: i64,
    /// Number of the attempt, from 0.
    pub attempt: u32,
    /// The whole row as JSON text.
    pub body: Bytes,
}

/// What came of a call.
#[derive(Debug)]
pub struct Reply {
    /// Status code, where HTTP gave one.
    pub http_status: Option<u16>,
    /// From the request to the last byte of the answer, or to the failure.
    pub server: Duration,
    /// The answer, or why there is none.
    pub result: Result<Answer, Failure>,
}

/// An answer that counts as a rollout.
#[derive(Debug)]
pub struct Answer {
    /// The whole body: valid UTF-8 and one JSON object.
    pub body: Bytes,
    /// The numbers in it.
    pub fields: AnswerFields,
}
