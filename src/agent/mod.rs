//! Agents, which answer rollouts: [`Agent`] is the trait of all kinds.
//!
//! [`Agents`] holds the agents of a sweep by name. [`NemoGymAgent`] runs elsewhere; [`ToolCallingAgent`] and
//! [`MultiTurnAgent`](multi_turn::MultiTurnAgent) run here, between a model and an environment. [`HeadServer`] says where
//! NeMo Gym's agents are, and [`MetricServers`] asks them for their own metrics. The run operator sends rollouts to agents.

mod error;
mod head_server;
mod metric_servers;
pub mod multi_turn;
mod native;
mod nemo_gym;
mod registry;
mod tool_calling;

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::call::{CallLog, RolloutKey};
use crate::json;
use crate::outcome::AnswerFields;
use crate::retry::{Failure, FailureClass};

pub use error::AgentError;
pub use head_server::HeadServer;
pub use metric_servers::{MetricServerOptions, MetricServers, RecordedAgents};
pub use nemo_gym::NemoGymAgent;
pub use registry::{AgentLimits, Agents, Member};
pub use tool_calling::{ToolCallingAgent, ToolCallingOptions};

pub use crate::outcome::Answer;

/// Answers rollouts.
///
/// A future of [`Self::run`] that is dropped must leave nothing behind: no task, no request in flight.
#[async_trait]
pub trait Agent: Debug + Send + Sync {
    /// Sends one rollout and waits for its answer or failure.
    async fn run(&self, request: RolloutRequest) -> Reply;

    /// Checks that the agent accepts a task, whose request is this JSON text. Called before anything is sent.
    ///
    /// # Errors
    /// The agent does not accept it. The text says why.
    fn check_task(&self, request: &str) -> Result<(), String> {
        let _ = request;
        Ok(())
    }

    /// Returns the address of the agent for people to read, without secrets.
    fn address(&self) -> &str;
}

/// A rollout as it is sent.
#[derive(Debug, Clone)]
pub struct RolloutRequest {
    /// The whole row as JSON text.
    pub body: Bytes,
    /// The attempt, and the log in which an agent that rollstream runs itself notes its calls.
    pub calls: CallLog,
    /// Whether any JSON object of an agent of NeMo Gym is an answer. Otherwise its flags and its reward are looked at.
    pub as_given: bool,
}

impl RolloutRequest {
    /// Returns the attempt.
    pub fn key(&self) -> RolloutKey {
        self.calls.key()
    }
}

/// The end of an attempt at a rollout.
#[derive(Debug)]
pub struct Reply {
    /// The status code, if there was an HTTP response.
    pub http_status: Option<u16>,
    /// The response headers that matter, as the text of a JSON object.
    pub headers: Option<String>,
    /// The time to open a connection; zero if an open one was used.
    pub connect: Duration,
    /// The time from the request to the head of the answer, if there was one.
    pub first_byte: Option<Duration>,
    /// The time from the request to the last byte of the answer, or to the failure, including `connect`.
    pub elapsed: Duration,
    /// The answer, or why there is none.
    pub result: Result<Answer, Failure>,
}

impl Reply {
    /// Creates a reply of which only the result is known, and the status that a failure names.
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

/// The functions that word a failure and quote an answer without secrets.
struct Wording<'a> {
    /// Makes a failure of a class and a reason.
    failure: &'a dyn Fn(FailureClass, &str) -> Failure,
    /// Returns the beginning of the body for the end of a reason.
    quote: &'a dyn Fn(&[u8]) -> String,
    /// Returns the beginning of another text of the answer.
    shown: &'a dyn Fn(&[u8]) -> String,
}

/// What a JSON object needs to be an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// Nothing more.
    Nothing,
    /// No flag of a failure.
    NoFlag,
    /// Neither a flag of a failure, nor a missing reward.
    Reward,
}

/// Judges a body of status 200 by NeMo Gym's contract. Flags come first: a flagged answer needs no reward.
fn judge(body: Bytes, needs: Needs, wording: &Wording<'_>) -> Result<Answer, Failure> {
    let data = |why: String| (wording.failure)(FailureClass::Data, &why);
    let text = std::str::from_utf8(&body)
        .map_err(|source| data(format!("the answer is not UTF-8 ({source})")))?;
    let fields = AnswerFields::parse(text).map_err(|source| {
        data(format!(
            "the answer is not a JSON object ({source}){}",
            (wording.quote)(&body)
        ))
    })?;
    if json::is_too_deep(text) {
        let most = json::MAX_DEPTH;
        return Err(data(format!("the answer nests deeper than {most} levels")));
    }
    if needs == Needs::Nothing {
        return Ok(Answer { fields, body });
    }
    if fields.no_persist {
        // The progress of trackers counts the reward.
        let reward = fields
            .reward
            .map(|reward| serde_json::json!({"reward": reward}));
        return Err(Failure {
            failure_terminal: fields.failure_terminal,
            answer: reward.map(|reward| reward.to_string().into()),
            ..(wording.failure)(
                FailureClass::NotPersisted,
                "the agent asked for its answer to be forgotten (_ng_no_persist)",
            )
        });
    }
    if let Some(class) = &fields.failure_class {
        let class = (wording.shown)(class.as_bytes());
        let why = format!("the agent reported a failure (_ng_failure_class: {class:?})");
        return Err(Failure {
            failure_terminal: fields.failure_terminal,
            answer: Some(body),
            ..(wording.failure)(FailureClass::AgentFlagged, &why)
        });
    }
    if needs == Needs::Reward && fields.reward.is_none() {
        return Err(data(format!(
            "the answer has no numeric 'reward'{}",
            (wording.quote)(&body)
        )));
    }
    Ok(Answer { fields, body })
}
