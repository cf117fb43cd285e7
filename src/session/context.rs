use std::sync::Arc;

use datafusion::common::Result;
use datafusion::error::DataFusionError;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::prelude::{SessionConfig, SessionContext};

use super::memory::Spilling;
use crate::error::{Error, FAILURE, Fatal};
use crate::store::{RunStore, StoreError};

/// The configuration that every session of ours starts from.
pub fn config() -> SessionConfig {
    let mut config = SessionConfig::new().with_information_schema(true);
    // A run's tables are read with the schema that is declared for them, never with one inferred.
    config.options_mut().execution.parquet.skip_metadata = true;
    config.options_mut().execution.collect_statistics = false;
    config
}

/// A session for queries that take few rows of all of a run: one partition, so that rows keep an order
/// from the first sort to the last group. What can go to temporary files is kept below `memory` bytes.
///
/// # Errors
/// There is no place for temporary files.
pub fn measuring(memory: usize) -> Result<SessionContext> {
    bounded(config().with_target_partitions(1), memory)
}

/// A session for queries that read all of a run and need no order: on all cores. What can go to
/// temporary files is kept below `memory` bytes.
///
/// # Errors
/// There is no place for temporary files.
pub fn gathering(memory: usize) -> Result<SessionContext> {
    bounded(config(), memory)
}

fn bounded(config: SessionConfig, memory: usize) -> Result<SessionContext> {
    let mut config = config.with_batch_size(1024);
    let options = config.options_mut();
    options.execution.sort_spill_reservation_bytes = memory / 8;
    // The small side of each join is written first, and must stay there: the other keeps its order.
    options.optimizer.join_reordering = false;
    Ok(SessionContext::new_with_config_rt(
        config,
        spilling(memory)?,
    ))
}

/// What a session runs in that keeps below `memory` bytes what can go to temporary files.
///
/// # Errors
/// There is no place for temporary files.
pub fn spilling(memory: usize) -> Result<Arc<RuntimeEnv>> {
    RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(Spilling::new(memory)))
        .build_arc()
}

/// A query that failed.
#[derive(Debug, thiserror::Error)]
#[error("{}", message(.0))]
pub(crate) struct QueryError(#[source] DataFusionError);

/// The engine's text, without the layers around an error of ours: nobody has a use for them.
fn message(error: &DataFusionError) -> String {
    match error {
        DataFusionError::External(inner) => inner.to_string(),
        other => other.strip_backtrace(),
    }
}

impl Fatal for QueryError {
    fn exit_code(&self) -> u8 {
        FAILURE
    }
}

impl From<DataFusionError> for Error {
    /// Finds the error of a store inside, where there is one.
    fn from(error: DataFusionError) -> Self {
        match error {
            DataFusionError::External(inner) => match inner.downcast::<StoreError>() {
                Ok(store) => (*store).into(),
                Err(other) => QueryError(DataFusionError::External(other)).into(),
            },
            DataFusionError::Context(_, inner) => Self::from(*inner),
            other => QueryError(other).into(),
        }
    }
}

/// Lets a session read what is kept in a run's store.
pub fn register_store(session: &SessionContext, run: &RunStore) {
    session.register_object_store(run.base(), Arc::clone(run.object_store()));
}
