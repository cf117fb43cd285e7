use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

pub use crate::outcome::Answer;
use crate::retry::Failure;
use crate::turn::{RolloutKey, TurnLog};

/// Somebody who answers rollouts.
///
/// A call that is dropped must leave nothing behind: no task, no request in flight.
#[async_trait]
pub trait Agent: Debug + Send + Sync {
    /// Sends one rollout and waits for what becomes of it.
    async fn run(&self, request: RolloutRequest) -> Reply;

    /// Whether it takes tasks of a kind; none where the row names none. Asked before anything is sent.
    ///
    /// # Errors
    /// Why it does not, in words that name the kind.
    fn check_task_name(&self, task_name: Option<&str>) -> Result<(), String> {
        let _ = task_name;
        Ok(())
    }

    /// Where the agent is, without secrets, for people to read.
    fn address(&self) -> &str;
}

/// A rollout as it is sent.
#[derive(Debug, Clone)]
pub struct RolloutRequest {
    /// The whole row as JSON text.
    pub body: Bytes,
    /// Where an agent that makes calls of its own notes them.
    pub turns: TurnLog,
}

impl RolloutRequest {
    /// The attempt.
    pub fn key(&self) -> RolloutKey {
        self.turns.key()
    }
}

/// What came of a call.
#[derive(Debug)]
pub struct Reply {
    /// Status code, where HTTP gave one.
    pub http_status: Option<u16>,
    /// Headers of the response that matter, as the text of a JSON object.
    pub headers: Option<String>,
    /// What opening a connection took; zero where an open one was used.
    pub connect: Duration,
    /// From the request to the head of the answer, where there was one.
    pub first_byte: Option<Duration>,
    /// From the request to the last byte of the answer, or to the failure; `connect` included.
    pub elapsed: Duration,
    /// The answer, or why there is none.
    pub result: Result<Answer, Failure>,
}

impl Reply {
    /// A reply of which nothing is known but its result, and the status that a failure names.
    pub fn new(result: Result<Answer, Failure>) -> Self {
        Self {
            http_status: result
                .as_ref()
                .err()
                .and_then(|failure| failure.http_status),
            headers: None,
            connect: Duration::ZERO,
            first_byte: None,
            elapsed: Duration::ZERO,
            result,
        }
    }
}
