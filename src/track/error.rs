//! [`TrackError`]: why something was not logged.

use std::io;
use std::path::PathBuf;

use crate::error::{Error, Fatal, USAGE};
use crate::http::{ClientError, describe};
use crate::store::StoreError;

/// Why something was not logged. No text has a secret.
#[derive(Debug, thiserror::Error)]
pub enum TrackError {
    /// A tracker is named in part.
    #[error("{present} is set, but not {absent}; set both, or none")]
    Partial {
        /// The setting that is there.
        present: &'static str,
        /// The setting that is missing.
        absent: &'static str,
    },
    /// The token has a character that no header can have.
    #[error("mlflow_tracking_token has a character that an HTTP header cannot have")]
    Token,
    /// The HTTP client cannot be set up.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The server gave no answer.
    #[error("{url} does not answer: {}", describe(source))]
    NoAnswer {
        /// The address of the server.
        url: String,
        /// What happened.
        source: reqwest::Error,
    },
    /// The server refused a request.
    #[error("{url} answered {status} to {path}: {reason}")]
    Refused {
        /// The address of the server.
        url: String,
        /// The path that was asked for.
        path: String,
        /// The status.
        status: u16,
        /// The beginning of its answer.
        reason: String,
    },
    /// The server's answer lacks something.
    #[error("{url} gave an answer to {path} that cannot be read")]
    Answer {
        /// The address of the server.
        url: String,
        /// The path that was asked for.
        path: String,
    },
    /// The server does not take files.
    #[error(
        "the server keeps files at {place}, where only MLflow's own client can put them; start it with \
         --artifacts-destination, or leave the rollouts out with +upload_rollouts=false"
    )]
    Artifacts {
        /// Where the server keeps files.
        place: String,
    },
    /// The files of W&B cannot be written.
    #[error("cannot write the files of W&B at {}: {source}", .path.display())]
    Files {
        /// The file, or a folder of it.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The Python package failed.
    #[error("the Python package wandb failed: {0}")]
    Package(String),
    /// The Python package cannot be talked to.
    #[error("the Python package wandb ended, or does not answer")]
    Pipe(#[source] io::Error),
    /// There was no answer in time.
    #[error("there was no answer in {} s", .0.as_secs())]
    Late(std::time::Duration),
    /// The file with the rollouts cannot be written.
    #[error("cannot write the rollouts to a temporary file: {0}")]
    Table(#[source] io::Error),
    /// There is no run.
    #[error("there is no run at {0}")]
    NoRun(String),
    /// The metrics of the run cannot be read.
    #[error("cannot read the metrics of the run: {0}")]
    Metrics(#[source] serde_json::Error),
    /// The run cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The run cannot be read.
    #[error(transparent)]
    Run(#[from] Error),
}

impl TrackError {
    /// Whether the same request may be granted later.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Refused { status, .. } => *status == 429 || *status >= 500,
            Self::NoAnswer { .. } | Self::Late(_) | Self::Pipe(_) => true,
            _ => false,
        }
    }
}

impl Fatal for TrackError {
    fn exit_code(&self) -> u8 {
        USAGE
    }
}
