//! [`Error`]: everything that can end a command, with the exit code that says what kind it is.

use datafusion::error::DataFusionError;

use crate::agent::AgentError;
use crate::config::{ConfigError, InterpolationError};
use crate::export::ExportError;
use crate::health::HealthError;
use crate::import::ImportError;
use crate::measure::MeasureError;
use crate::read::{PromptError, ReadTasksError, SourceError};
use crate::report::NothingScored;
use crate::show::ShowError;
use crate::sim::SimError;
use crate::store::StoreError;

/// What ends a sweep, or keeps it from beginning.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What was asked makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// What was asked names something that is not there.
    #[error("{0}")]
    Usage(String),
    /// The input can't be read, or lines of it are not tasks.
    #[error(transparent)]
    Input(#[from] ReadTasksError),
    /// Files of another tool can't be imported.
    #[error("cannot import: {0}")]
    Import(#[from] ImportError),
    /// A run can't be written as files of another tool.
    #[error("cannot export: {0}")]
    Export(#[from] ExportError),
    /// The health of rollouts is not known.
    #[error(transparent)]
    Health(#[from] HealthError),
    /// The prompt template can't be used.
    #[error("prompt_config: {0}")]
    Prompt(#[from] PromptError),
    /// An override refers to something that is not there.
    #[error("responses_create_params: {0}")]
    Override(#[from] InterpolationError),
    /// An agent can't be asked.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The place of the run can't be used.
    #[error("cannot use the output: {0}")]
    Output(#[source] StoreError),
    /// A run can't be gone on with.
    #[error(
        "cannot resume {place}: {difference}. Give the same input and options (--extend allows more tasks and repeats), or \
         another --output"
    )]
    Resume {
        /// The run.
        place: String,
        /// What differs from `run.json`.
        difference: String,
    },
    /// A run has no score.
    #[error(transparent)]
    NothingScored(#[from] NothingScored),
    /// A run was to be complete.
    #[error(
        "EVAL FAILED: {done}/{planned} samples completed, and --require-complete wants all. Partial artifacts retained at {place}; \
         go on with --resume"
    )]
    Incomplete {
        /// Rollouts that are done.
        done: u64,
        /// Rollouts that were asked for.
        planned: u64,
        /// The run, as a person names it.
        place: String,
    },
    /// Storage failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A metric failed.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// The simulated agent's settings make no sense.
    #[error("[sim]: {0}")]
    SimSettings(String),
    /// The simulated agent can't serve.
    #[error("the simulated agent: {0}")]
    Sim(#[from] SimError),
    /// Output can't be written.
    #[error(transparent)]
    Show(#[from] ShowError),
    /// A query failed.
    #[error("{0}")]
    Query(String),
    /// The program is at fault.
    #[error("a defect of rollstream: {0}")]
    Defect(String),
}

impl Error {
    /// Exit code: 2 for what the user can mend on the command line, 1 for the rest.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_)
            | Self::Usage(_)
            | Self::Input(_)
            | Self::Prompt(_)
            | Self::Override(_)
            | Self::SimSettings(_)
            | Self::Sim(_)
            | Self::Output(_)
            | Self::Resume { .. } => 2,
            Self::Agent(error) => match error {
                AgentError::Client(_) | AgentError::HeadServer { .. } => 1,
                _ => 2,
            },
            Self::Import(error) => match error {
                ImportError::Read { .. }
                | ImportError::Write(_)
                | ImportError::Tables(_)
                | ImportError::Abandoned => 1,
                _ => 2,
            },
            Self::Export(error) => match error {
                ExportError::Exists(_) | ExportError::Target(_) => 2,
                _ => 1,
            },
            Self::Health(error) => match error {
                HealthError::Unknown { .. } => 2,
                _ => 1,
            },
            Self::Store(
                StoreError::NoRun { .. }
                | StoreError::Exists { .. }
                | StoreError::Address { .. }
                | StoreError::Locked { .. }
                | StoreError::Setup { .. }
                | StoreError::StateDirectory { .. },
            ) => 2,
            Self::Measure(
                MeasureError::Parameter { .. }
                | MeasureError::Directory { .. }
                | MeasureError::Header { .. }
                | MeasureError::Name { .. }
                | MeasureError::Missing { .. }
                | MeasureError::Extra { .. }
                | MeasureError::Unknown(_),
            ) => 2,
            Self::Store(_)
            | Self::NothingScored(_)
            | Self::Incomplete { .. }
            | Self::Measure(_)
            | Self::Show(_)
            | Self::Query(_)
            | Self::Defect(_) => 1,
        }
    }
}

impl Error {
    /// What can't happen, but did.
    pub(crate) fn defect(error: impl std::fmt::Display) -> Self {
        Self::Defect(error.to_string())
    }
}

impl From<SourceError> for Error {
    fn from(error: SourceError) -> Self {
        Self::Input(error.into())
    }
}

impl From<DataFusionError> for Error {
    /// Finds our own error inside, where there is one: a user has no use for the layers around it.
    fn from(error: DataFusionError) -> Self {
        match error {
            DataFusionError::External(inner) => match inner.downcast::<StoreError>() {
                Ok(store) => Self::Store(*store),
                Err(other) => Self::Query(other.to_string()),
            },
            DataFusionError::Context(_, inner) => Self::from(*inner),
            other => Self::Query(other.strip_backtrace()),
        }
    }
}
