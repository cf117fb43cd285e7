//! A run as the files of another tool: [`export_nemo_gym`] writes those of NeMo Gym, where [`ExportTarget`] says. The
//! health checks read a run as [`RolloutRows`], and measuring stamps answers with a [`StampIndex`].

mod calls;
mod nemo_gym;
mod stamps;
mod target;
mod trajectory;

use std::io;
use std::path::{Path, PathBuf};

use datafusion::error::DataFusionError;

pub use nemo_gym::{ExportReport, RolloutRows, export_metrics, export_nemo_gym, failed_attempts};
pub use stamps::{EnvironmentServers, StampIndex};
pub use target::ExportTarget;

use crate::error::{FAILURE, Fatal, USAGE};
use crate::request::RequestError;
use crate::store::StoreError;

/// Why a run is not exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A file exists already.
    #[error("'{path}' exists already. Replace it with --overwrite, or choose another --output", path = .0.display())]
    Exists(PathBuf),
    /// The output names no file.
    #[error("--output '{path}' names no file; write a path such as out/rollouts.jsonl, or a directory", path = .0.display())]
    Target(PathBuf),
    /// A file cannot be written.
    #[error("cannot write '{path}': {source}", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The run cannot be read.
    #[error("cannot read the run: {0}")]
    Read(#[from] Box<DataFusionError>),
    /// The metrics cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A task of the run is not a request.
    #[error("a task of the run cannot be written: {0}")]
    Request(#[from] RequestError),
}

impl ExportError {
    /// Returns a function that turns an I/O error into the error that a file cannot be written.
    fn write(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::Write {
            path: path.to_owned(),
            source,
        }
    }
}

impl From<DataFusionError> for ExportError {
    fn from(error: DataFusionError) -> Self {
        Self::Read(Box::new(error))
    }
}

impl Fatal for ExportError {
    const CONTEXT: &'static str = "cannot export";

    fn exit_code(&self) -> u8 {
        match self {
            Self::Exists(_) | Self::Target(_) => USAGE,
            _ => FAILURE,
        }
    }
}
