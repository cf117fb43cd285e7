use std::sync::Arc;

use datafusion::prelude::{SessionConfig, SessionContext};

use crate::store::RunStore;

/// The configuration that every session of ours starts from.
pub fn config() -> SessionConfig {
    let mut config = SessionConfig::new().with_information_schema(true);
    // A run's tables are read with the schema that is declared for them, never with one inferred.
    config.options_mut().execution.parquet.skip_metadata = true;
    config.options_mut().execution.collect_statistics = false;
    config
}

/// Lets a session read what is kept in a run's store.
pub fn register_store(session: &SessionContext, run: &RunStore) {
    if run.local_path().is_none() {
        session.register_object_store(run.base(), Arc::clone(run.object_store()));
    }
}
