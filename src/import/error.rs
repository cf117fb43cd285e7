//! What is wrong with a file that is imported: [`ImportError`], and [`RowProblem`] for one of its lines.

use std::io;

use arrow::error::ArrowError;
use datafusion::error::DataFusionError;

use crate::error::{FAILURE, Fatal, USAGE};
use crate::json::SyntaxError;

/// Why a file is not imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It cannot be read.
    #[error("'{path}' cannot be read: {source}")]
    Read {
        /// The file, as given.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// A line cannot be used.
    #[error("{}", .problem.of_line(path, *line))]
    Row {
        /// The file, as given.
        path: String,
        /// The line, from 1.
        line: u64,
        /// What is wrong with the line.
        problem: RowProblem,
    },
    /// A file without which nothing can be resumed is missing.
    #[error(
        "'{path}' does not exist, and a collection can't be imported or resumed without it. If the file has another name, \
         give it as {option}; if there is none, collect again with `rollstream collect --input input.jsonl --output RUN`"
    )]
    NoFile {
        /// The file that was looked for.
        path: String,
        /// The option or argument that gives another name.
        option: &'static str,
    },
    /// The receiver of the rows is gone.
    #[error("the import was abandoned")]
    Abandoned,
    /// Two input rows with one key.
    #[error("Duplicate materialized input row for rollout key {0}")]
    DuplicateInput(String),
    /// Two answers with one key.
    #[error("Duplicate result row for rollout key {0}")]
    DuplicateResult(String),
    /// Rows have no keys, but are to be counted by them.
    #[error(
        "the rows have no _ng_task_index and _ng_rollout_index; rollouts cannot be aggregated without them"
    )]
    NoKeys,
    /// Merged lines cannot be written.
    #[error("the merged rollouts cannot be written: {0}")]
    Write(#[source] io::Error),
    /// The tables cannot be made, which would be a defect.
    #[error("the imported rows cannot be made a table: {0}")]
    Tables(#[from] Box<DataFusionError>),
}

impl From<ArrowError> for ImportError {
    fn from(error: ArrowError) -> Self {
        Self::Tables(Box::new(error.into()))
    }
}

impl From<DataFusionError> for ImportError {
    fn from(error: DataFusionError) -> Self {
        Self::Tables(Box::new(error))
    }
}

/// What is wrong with a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowProblem {
    /// It is not JSON.
    #[error(transparent)]
    Malformed(SyntaxError),
    /// It is not UTF-8.
    #[error("it is not UTF-8; convert the file first")]
    Encoding,
    /// The materialized inputs end within the line.
    #[error(
        "{0}. NeMo Gym writes this file before it sends anything, so either \
         it is an incomplete copy (copy it again), or nothing was collected yet (start over with \
         `rollstream collect --input input.jsonl`). The inputs after that line are unknown; delete the line to do \
         without"
    )]
    Torn(SyntaxError),
    /// The line is longer than a table can hold.
    #[error("the line is longer than 1 GiB")]
    TooLong,
    /// It is a list, a string, a number or null.
    #[error("a row must be a JSON object")]
    NotAnObject,
    /// A key is missing.
    #[error("the row has no {0}")]
    NoKey(&'static str),
    /// A key is of a wrong type.
    #[error("{0} must be an integer of 64 bits")]
    NotAnInteger(&'static str),
    /// Tasks are named by strings in some rows and by integers in others.
    #[error(
        "_ng_task_index is {0} here, but not in earlier rows; tasks can only be sorted if all have the same type"
    )]
    OtherKind(&'static str),
    /// Some rows have keys, others have none.
    #[error(
        "this row has {what} _ng_task_index and _ng_rollout_index, earlier ones have {earlier}; \
         rows can only be sorted if all of them have both"
    )]
    MixedKeys {
        /// `both`, or `not both of`.
        what: &'static str,
        /// The same for earlier rows.
        earlier: &'static str,
    },
    /// A rollout that was not planned.
    #[error(
        "no materialized input has the rollout key {0}; the files are from different collections"
    )]
    UnknownKey(String),
    /// The row names no agent.
    #[error("the row has no agent_ref with a name")]
    NoAgent,
    /// The row has no response.
    #[error("the row has no response that is a JSON object")]
    NoResponse,
}

impl RowProblem {
    fn of_line(&self, path: &str, line: u64) -> String {
        match self {
            Self::Malformed(_) | Self::Encoding => {
                format!("Malformed JSON in '{path}' at line {line}: {self}")
            }
            Self::Torn(_) => format!("'{path}' ends within line {line}: {self}"),
            _ => format!("'{path}', line {line}: {self}"),
        }
    }
}

impl Fatal for ImportError {
    const CONTEXT: &'static str = "cannot import";

    fn exit_code(&self) -> u8 {
        match self {
            Self::Read { .. } | Self::Write(_) | Self::Tables(_) | Self::Abandoned => FAILURE,
            _ => USAGE,
        }
    }
}
