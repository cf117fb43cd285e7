//! Rollouts as people read them: [`Reader`] finds them in the tables of a run, and a [`Transcript`] is one of them, with
//! its prompt, its turns, its scores and its attempts. Used by the command line.

mod conversation;
mod reader;

pub use conversation::{Item, Kind};
pub use reader::{Key, MAX_SELECTED, Prompt, Reader, Select, TaskLine, Walk};
pub(crate) use reader::{Said, TASKS};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::session::row;

/// The state of a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RolloutState {
    /// It has an answer.
    Done,
    /// Its retries are exhausted, or the agent said never again.
    Failed,
    /// It was not sent yet, is in flight, or will be retried.
    Pending,
}

impl RolloutState {
    /// Returns how it is called.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Pending => "pending",
        }
    }
}

/// A rollout: what was asked and answered, and how it was scored.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Transcript {
    /// Index of the task.
    pub task_index: i64,
    /// Index of the rollout within its task.
    pub rollout_index: i64,
    /// The agent.
    pub agent_name: String,
    /// Whether it has an answer.
    pub state: RolloutState,
    /// Its score.
    pub reward: Option<f64>,
    /// Tokens of the input.
    pub input_tokens: Option<i64>,
    /// Tokens of the output.
    pub output_tokens: Option<i64>,
    /// When the request of the attempt that succeeded was sent.
    pub started_at: Option<String>,
    /// Milliseconds from the request to the last byte of the answer.
    pub latency_ms: Option<f64>,
    /// Whether the answer was cut off.
    pub truncated: bool,
    /// Whether the environment says that the reward tells nothing about the agent.
    pub masked: bool,
    /// The input file of the task, as given.
    pub source_file: String,
    /// The line of the task in its input file, from 1.
    pub source_line: i64,
    /// The tools that the agent was offered.
    pub tools: Vec<String>,
    /// The conversation: the prompt, and what followed.
    pub items: Vec<Item>,
    /// The fields of the task that say what the right answer is.
    pub expected: Map<String, Value>,
    /// The other fields of the task.
    pub task: Map<String, Value>,
    /// The other fields of the answer: scores, and what was extracted from it.
    pub scores: Map<String, Value>,
    /// The attempts, in order.
    pub attempts: Vec<Attempt>,
}

row! {
    /// An attempt at a rollout.
    #[derive(Debug, Clone, PartialEq, Serialize)]
    pub struct Attempt {
        /// Its number, from 0.
        pub attempt: i64,
        /// `ok`, or the class of its failure.
        pub outcome: String,
        /// The status of the HTTP answer.
        pub http_status: Option<i64>,
        /// What went wrong.
        pub error: Option<String>,
        /// Whether the rollout failed with this attempt.
        pub terminal: bool,
        /// When it was sent.
        pub dispatched_at: String,
        /// Milliseconds until the last byte of the answer, if a connection was opened.
        pub server_ms: Option<f64>,
    }
}
