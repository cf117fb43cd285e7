//! The errors of computing metrics.

use std::path::PathBuf;

use arrow::error::ArrowError;
use datafusion::error::DataFusionError;
use parquet::errors::ParquetError;

use crate::error::{FAILURE, Fatal, USAGE};
use crate::session::plain;
use crate::session::rows::NoColumn;

/// An error of computing or writing metrics.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// A query fails.
    #[error("metric query '{name}' ({origin}) failed: {}", plain(.error))]
    Query {
        /// The query's name.
        name: String,
        /// Its file, or that it is built in.
        origin: String,
        /// The error of the engine.
        error: Box<DataFusionError>,
    },
    /// The statistics cannot be read.
    #[error("the statistics cannot be read: {}", plain(.0))]
    Tables(Box<DataFusionError>),
    /// A column is missing, or has another type.
    #[error(
        "a metric query returns no column '{column}' of type {expected}; the files agent_statistics.sql \
         and task_statistics.sql must give the columns that their headers name"
    )]
    Column {
        /// The column.
        column: String,
        /// Its type.
        expected: &'static str,
    },
    /// A folder of queries cannot be read.
    #[error("the metric queries of '{path}' cannot be read: {source}")]
    Directory {
        /// The folder or file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file name cannot be the name of a metric family.
    #[error(
        "'{path}' cannot be a metric query: name it with letters, digits, '_' and '-', such as my_metric.sql"
    )]
    Name {
        /// The file.
        path: PathBuf,
    },
    /// A parameter does not exist, or its value is invalid.
    #[error("--param {text}: {why}")]
    Parameter {
        /// What was given.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// A line of a query's header can't be parsed.
    #[error(
        "metric query '{name}' ({origin}): '{line}' is not a parameter; write 'name = value   what it is for'"
    )]
    Header {
        /// The query's name.
        name: String,
        /// Its file, or that it is built in.
        origin: String,
        /// The line.
        line: String,
    },
    /// No query has this name.
    #[error("there is no metric family '{name}'; {hint}")]
    Unknown {
        /// What was given.
        name: String,
        /// The family that may be meant, or else all of them.
        hint: String,
    },
    /// The request of a task is missing or not a JSON object.
    #[error("{table}: the row of task {task_index} holds no JSON object")]
    Row {
        /// The table.
        table: &'static str,
        /// The task.
        task_index: i64,
    },
    /// There are rollouts that were not planned.
    #[error(
        "Rollout results contain rows with no matching materialized input rows. Found {count} extra rollout rows. \
         Extra rollout keys: [{keys}]"
    )]
    Extra {
        /// Number of them.
        count: i64,
        /// The first ten.
        keys: String,
    },
    /// Planned rollouts are missing.
    #[error(
        "Materialized input rows and rollout results do not have matching rollout keys. Missing rollout results for \
         {count} materialized input rows. Missing rollout keys: [{keys}].\n\nUse ++allow_partial_rollouts=True to \
         profile completed rollouts from a partial collection."
    )]
    Missing {
        /// Number of them.
        count: i64,
        /// The first ten.
        keys: String,
    },
    /// A view that several queries read cannot be computed.
    #[error(transparent)]
    Shared(std::sync::Arc<Self>),
    /// The output cannot be written.
    #[error("the metrics cannot be written: {0}")]
    Write(#[source] std::io::Error),
}

impl From<ArrowError> for MeasureError {
    fn from(source: ArrowError) -> Self {
        DataFusionError::from(source).into()
    }
}

impl From<ParquetError> for MeasureError {
    fn from(source: ParquetError) -> Self {
        DataFusionError::from(source).into()
    }
}

impl From<DataFusionError> for MeasureError {
    fn from(source: DataFusionError) -> Self {
        let column = match &source {
            DataFusionError::External(error) => error.downcast_ref::<NoColumn>(),
            _ => None,
        };
        if let Some(NoColumn { column, expected }) = column {
            let column = column.clone();
            return Self::Column { column, expected };
        }
        match source {
            DataFusionError::IoError(source) => Self::Write(source),
            source => Self::Tables(Box::new(source)),
        }
    }
}

impl Fatal for MeasureError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Parameter { .. }
            | Self::Directory { .. }
            | Self::Header { .. }
            | Self::Name { .. }
            | Self::Missing { .. }
            | Self::Extra { .. }
            | Self::Unknown { .. } => USAGE,
            _ => FAILURE,
        }
    }
}
