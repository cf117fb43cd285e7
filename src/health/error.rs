use std::io;
use std::path::PathBuf;

use datafusion::error::DataFusionError;

use crate::error::{FAILURE, Fatal, USAGE};
use crate::export::ExportError;
use crate::measure::MeasureError;
use crate::store::StoreError;

/// Why the health of rollouts cannot be checked.
#[derive(Debug, thiserror::Error)]
pub enum HealthError {
    /// Checks that should be left out do not exist.
    #[error("unknown health checks: {}; there are {}", .unknown.join(", "), .known.join(", "))]
    Unknown {
        /// The names that were given.
        unknown: Vec<String>,
        /// All checks.
        known: Vec<String>,
    },
    /// A file cannot be read.
    #[error("cannot read '{path}': {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A record does not say which rollout it is.
    #[error(
        "{place}, line {line}: {field} is neither a whole number nor a text; correct or remove the line"
    )]
    Index {
        /// The file or run.
        place: String,
        /// From 1.
        line: u64,
        /// The field.
        field: &'static str,
    },
    /// A query failed, or temporary files cannot be written.
    #[error("cannot check the health of rollouts: {0}")]
    Measure(#[from] MeasureError),
    /// A run cannot be read as NeMo Gym's rows.
    #[error(transparent)]
    Rows(#[from] ExportError),
    /// A report cannot be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A report cannot be written.
    #[error("cannot write the report on the health of rollouts: {0}")]
    Write(#[from] io::Error),
}

impl From<DataFusionError> for HealthError {
    fn from(source: DataFusionError) -> Self {
        Self::Measure(source.into())
    }
}

impl Fatal for HealthError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Unknown { .. } => USAGE,
            _ => FAILURE,
        }
    }
}
