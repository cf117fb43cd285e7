use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::retry::FailureClass;

/// An attempt at a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RolloutKey {
    /// Index of the task.
    pub task_index: i64,
    /// Index of the rollout within the task.
    pub rollout_index: i64,
    /// Number of the attempt, from 0.
    pub attempt: u32,
}

impl RolloutKey {
    /// Attempt `attempt` (from 0) at a rollout.
    pub fn new(task_index: i64, rollout_index: i64, attempt: u32) -> Self {
        Self {
            task_index,
            rollout_index,
            attempt,
        }
    }
}

/// Task and rollout, as they stand in `rollout_ids`.
impl fmt::Display for RolloutKey {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "{}-{}", self.task_index, self.rollout_index)
    }
}

/// What a call within an attempt is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TurnKind {
    /// A session is opened at a resources server.
    SeedSession,
    /// A model generates.
    Model,
    /// A tool is called.
    Tool,
    /// An environment begins an episode.
    Reset,
    /// An environment takes a step.
    Step,
    /// An answer is scored.
    Verify,
    /// An environment ends an episode.
    Close,
}

impl TurnKind {
    /// Every kind, in the order of the numbers that the journal knows them by.
    pub const ALL: [Self; 7] = [
        Self::SeedSession,
        Self::Model,
        Self::Tool,
        Self::Reset,
        Self::Step,
        Self::Verify,
        Self::Close,
    ];

    /// Its name, as it stands in the `kind` column.
    pub fn name(self) -> &'static str {
        match self {
            Self::SeedSession => "seed_session",
            Self::Model => "model",
            Self::Tool => "tool",
            Self::Reset => "reset",
            Self::Step => "step",
            Self::Verify => "verify",
            Self::Close => "close",
        }
    }
}

/// What is known of a call before it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnStart {
    /// Number of the call within the attempt, from 0.
    pub call: u32,
    /// Number of the turn that it belongs to, from 1; 0 before the first.
    pub turn: u32,
    /// What it is for.
    pub kind: TurnKind,
    /// How many times the same call was sent before.
    pub repetition: u32,
    /// When it is sent.
    pub started_at: SystemTime,
}

/// A call within an attempt: a row of `turns`.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// What was known before it was sent.
    pub start: TurnStart,
    /// The model, tool or task name; none where nobody lived to say.
    pub name: Option<Arc<str>>,
    /// Method and address, without secrets; none likewise.
    pub address: Option<Arc<str>>,
    /// How it ended; none if nobody saw that.
    pub end: Option<TurnEnd>,
}

/// How a call within an attempt ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TurnEnd {
    /// Why it failed; none if it did not.
    pub failure: Option<FailureClass>,
    /// Status code, where HTTP gave one.
    pub http_status: Option<u16>,
    /// What went wrong, in words.
    pub error: Option<String>,
    /// From the request to the last byte of the answer.
    pub elapsed: Duration,
    /// Tokens of the input, where the answer says.
    pub input_tokens: Option<u64>,
    /// Tokens of the output, where the answer says.
    pub output_tokens: Option<u64>,
    /// Bytes of the request.
    pub request_bytes: u64,
    /// Bytes of the answer.
    pub response_bytes: u64,
}
