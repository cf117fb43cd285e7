//! [`ReadOptions`], [`TaskRow`] and [`ReadSummary`]: what goes into reading and what comes out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::lines::LineError;
use super::overrides::Overrides;
use super::prompt::Prompt;
use crate::config::{Repeats, Routing, SeedField};
use crate::servers::{Route, Servers};

/// What is done to each line.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {
    /// The agent for rows without an `agent_ref` of their own; an empty name is none.
    pub agent_name: Option<String>,
    /// By which agents are found instead, and `agent_name` says nothing: the rules of NeMo Gym 0.7 hold.
    pub routing: Option<Routing>,
    /// The servers that rows may name, where they are known.
    pub servers: Option<Arc<Servers>>,
    /// The number of lines to read over all inputs together: 0 is no limit, and a negative one reads nothing.
    pub limit: Option<i64>,
    /// How often each task is rolled out.
    pub repeats: Repeats,
    /// Where each rollout gets a seed, if it does; rows that cannot carry it are errors.
    pub seed: Option<SeedField>,
    /// What is set in every row's `responses_create_params`.
    pub overrides: Overrides,
    /// What every row's `responses_create_params.input` is made of.
    pub prompt: Option<Prompt>,
}

/// A line as a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRow {
    /// Lines that are the same task share it. A row's own whole number, or the count of tasks before it; values of
    /// other types have an index far below zero standing for them.
    pub task_index: i64,
    /// The number of the first rollout that this line adds to the task.
    pub first_rollout_index: i64,
    /// How many rollouts it adds.
    pub num_repeats: u32,
    /// Who gets the task.
    pub agent_name: Arc<str>,
    /// The name of the input.
    pub source_file: Arc<str>,
    /// The line in it, the first being 1.
    pub source_line: u64,
    /// The first 128 bits of the BLAKE3 hash of `request` without its index fields: the same task has it wherever
    /// it stands.
    pub task_digest: [u8; 16],
    /// The request as JSON text, with `agent_ref` and `_ng_task_index`; [`RequestTemplate`](crate::request::RequestTemplate) adds what differs from
    /// rollout to rollout.
    pub request: String,
}

/// An input that ended in the middle.
#[derive(Debug, thiserror::Error)]
#[error("'{file}' cannot be read on after line {line}: {source}")]
pub struct ReadError {
    /// The name of the input.
    pub file: Arc<str>,
    /// The last line that was read, the first being 1.
    pub line: u64,
    /// What happened.
    pub source: LineError,
}

/// What was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadSummary {
    /// The number of lines.
    pub rows: u64,
    /// What each agent has to do, by name.
    pub agents: BTreeMap<Arc<str>, AgentRows>,
    /// Where rows go, where they are routed.
    pub routes: BTreeSet<Route>,
    /// The number of lines that name another agent than the one that gets them, where they are routed.
    pub num_replaced: u64,
    /// What the user may not have meant, though it can be done.
    pub warnings: Vec<String>,
}

/// What one agent has to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AgentRows {
    /// The number of lines.
    pub rows: u64,
    /// The number of rollouts.
    pub rollouts: u64,
}
