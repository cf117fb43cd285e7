//! [`ReadOptions`], [`TaskRow`] and [`ReadSummary`]: what goes into reading and what comes out, row by row or in
//! batches of a [`TaskBatchBuilder`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Builder, StringViewBuilder};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;

use super::lines::LineError;
use super::prompt::Prompt;
use super::row::Overrides;
use crate::config::{Repeats, Routing, SeedField};
use crate::schema;
use crate::servers::{Route, Servers};

/// How lines become tasks.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {
    /// The agent for rows without an `agent_ref` of their own; an empty name is none.
    pub agent_name: Option<String>,
    /// The routing by the rules of NeMo Gym 0.7, which replaces `agent_name`.
    pub routing: Option<Routing>,
    /// The servers that rows may name, if they are known.
    pub servers: Option<Arc<Servers>>,
    /// The number of lines to read over all inputs together: 0 is no limit, and a negative one reads nothing.
    pub limit: Option<i64>,
    /// How often each task is rolled out.
    pub repeats: Repeats,
    /// The field for the seed of each rollout, if there are seeds; rows that cannot carry it are errors.
    pub seed: Option<SeedField>,
    /// Fields that are set in every row's `responses_create_params`.
    pub overrides: Overrides,
    /// The templates from which every row's `responses_create_params.input` is made.
    pub prompt: Option<Prompt>,
    /// Whether a row may be just a question with its answer; then it gets the `responses_create_params` that ask it.
    pub plain_questions: bool,
}

/// A line as a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRow {
    /// The task's index, the same for all its lines: the row's own integer, or the number of tasks before it. Values
    /// of other types are represented by indices far below zero.
    pub task_index: i64,
    /// The number of the first rollout that this line adds to the task.
    pub first_rollout_index: i64,
    /// How many rollouts this line adds.
    pub num_repeats: u32,
    /// Who gets the task.
    pub agent_name: Arc<str>,
    /// The name of the input.
    pub source_file: Arc<str>,
    /// The line in the input, from 1.
    pub source_line: u64,
    /// The first 128 bits of the BLAKE3 hash of `request` without its index fields: the same for all lines of
    /// a task.
    pub task_digest: [u8; 16],
    /// The request as JSON text, with `agent_ref` and `_ng_task_index`. [`crate::request::RequestTemplate`] adds what
    /// differs between rollouts.
    pub request: String,
}

/// An input that cannot be read to its end.
#[derive(Debug, thiserror::Error)]
#[error("'{file}' cannot be read beyond line {line}: {source}")]
pub struct ReadError {
    /// The name of the input.
    pub file: Arc<str>,
    /// The last line that was read, from 1.
    pub line: u64,
    /// The cause.
    pub source: LineError,
}

/// What was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadSummary {
    /// The number of lines.
    pub rows: u64,
    /// The lines and rollouts of each agent, by name.
    pub agents: BTreeMap<Arc<str>, AgentRows>,
    /// The routes of the rows, if they are routed.
    pub routes: BTreeSet<Route>,
    /// The number of routed lines that name another agent than the one that gets them.
    pub num_replaced: u64,
    /// Warnings about input that may not be what the user meant.
    pub warnings: Vec<String>,
}

/// The lines and rollouts of one agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AgentRows {
    /// The number of lines.
    pub rows: u64,
    /// The number of rollouts.
    pub rollouts: u64,
}

/// A batch is full at this many rows, or bytes of requests.
const BATCH_ROWS: usize = 8192;
const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// Builds batches of [`schema::tasks`].
#[derive(Debug, Default)]
pub struct TaskBatchBuilder {
    task_index: Int64Builder,
    agent_name: StringViewBuilder,
    first_rollout_index: Int64Builder,
    num_repeats: Int64Builder,
    source_file: StringViewBuilder,
    source_line: Int64Builder,
    task_digest: StringViewBuilder,
    request: StringViewBuilder,
    rows: usize,
    bytes: usize,
}

impl TaskBatchBuilder {
    /// Creates a builder that stores equal texts once, for rows that repeat their requests.
    pub fn deduplicated() -> Self {
        let shared = || StringViewBuilder::new().with_deduplicate_strings();
        Self {
            agent_name: shared(),
            source_file: shared(),
            request: shared(),
            ..Self::default()
        }
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Whether the batch is full, so that [`Self::finish`] should be called.
    pub fn is_full(&self) -> bool {
        self.rows >= BATCH_ROWS || self.bytes >= BATCH_BYTES
    }

    /// Adds a row.
    ///
    /// # Errors
    /// The request is larger than a column can hold: 2 GiB.
    pub fn append(&mut self, row: &TaskRow) -> Result<(), ArrowError> {
        self.task_index.append_value(row.task_index);
        self.agent_name.try_append_value(&row.agent_name)?;
        self.first_rollout_index
            .append_value(row.first_rollout_index);
        self.num_repeats.append_value(row.num_repeats.into());
        self.source_file.try_append_value(&row.source_file)?;
        self.source_line
            .append_value(i64::try_from(row.source_line).unwrap_or(i64::MAX));
        let digest = u128::from_be_bytes(row.task_digest);
        self.task_digest
            .try_append_value(format!("{digest:032x}"))?;
        self.request.try_append_value(&row.request)?;
        self.rows += 1;
        self.bytes += row.request.len();
        Ok(())
    }

    /// Returns the rows so far as a batch, and empties the builder.
    ///
    /// # Errors
    /// The columns do not fit the schema, which would be a defect.
    pub fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        self.rows = 0;
        self.bytes = 0;
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.task_index.finish()),
            Arc::new(self.agent_name.finish()),
            Arc::new(self.first_rollout_index.finish()),
            Arc::new(self.num_repeats.finish()),
            Arc::new(self.source_file.finish()),
            Arc::new(self.source_line.finish()),
            Arc::new(self.task_digest.finish()),
            Arc::new(self.request.finish()),
        ];
        RecordBatch::try_new(schema::tasks(), columns)
    }
}
