use std::path::Path;

use tokio::fs::File;

use crate::error::Error;
use crate::read::Batches;
use crate::schema;
use crate::store::{PartWriter, RunStore, Scratch, StoreError, part_name};

/// Name of the one part that a sweep's tasks become.
const PART: &str = "tasks";

/// The `tasks` table in a temporary place, until the whole input was found good: an input error
/// must leave nothing behind where the run would be.
#[derive(Debug)]
pub(super) struct Spool {
    // Removed from the disk when dropped. None where the table is that of a run.
    _directory: Option<Scratch>,
    store: RunStore,
    /// Tasks, or rather lines of the input.
    pub(super) num_rows: u64,
    /// Bytes of their requests in memory.
    pub(super) num_bytes: u64,
}

impl Spool {
    /// Writes what `batches` gives.
    pub(super) async fn write(mut batches: Batches) -> Result<Self, Error> {
        let failed = |source| StoreError::File {
            action: "create a directory in",
            path: std::env::temp_dir(),
            source,
        };
        let directory = Scratch::new().map_err(failed)?;
        let store = RunStore::local(directory.path().to_owned())?;
        let name = part_name(schema::TASKS, PART);
        let mut writer = PartWriter::new(&store, schema::TASKS, &name, schema::tasks())?;
        let (mut num_rows, mut num_bytes) = (0, 0);
        while let Some(batch) = batches.recv().await {
            num_rows += batch.num_rows() as u64;
            num_bytes += batch.get_array_memory_size() as u64;
            writer.write(&batch).await?;
        }
        writer.finish().await?;
        Ok(Self {
            _directory: Some(directory),
            store,
            num_rows,
            num_bytes,
        })
    }

    /// The tasks of a run as they are: nothing is spooled.
    pub(super) fn of_run(run: &RunStore, num_rows: u64, num_bytes: u64) -> Self {
        Self {
            _directory: None,
            store: run.clone(),
            num_rows,
            num_bytes,
        }
    }

    /// The table, as a run of its own that has nothing but tasks.
    pub(super) fn store(&self) -> &RunStore {
        &self.store
    }

    /// Copies the table to the run.
    pub(super) async fn publish(&self, run: &RunStore) -> Result<(), StoreError> {
        let name = part_name(schema::TASKS, PART);
        let path = self
            .store
            .local_path()
            .unwrap_or(Path::new("/"))
            .join(&name);
        let part = File::open(&path).await;
        let part = part.map_err(|source| StoreError::File {
            action: "read",
            path,
            source,
        })?;
        run.upload(&name, part).await
    }
}
