//! The objects of the locks of a run, and its epochs: `writers/EPOCH.json` is made by the one writer that has the epoch,
//! and stays as long as the run.

use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::{StreamExt, TryStreamExt, stream};

use super::{LockRecord, LockScope};
use crate::store::{RunStore, StoreError};

/// Directory of the locks within a run.
const LOCK: &str = "lock";

/// Directory of the writers that a run had.
const WRITERS: &str = "writers";

/// How long the store may take for one request.
const DEADLINE: Duration = Duration::from_secs(30);

/// Locks that are read at once.
const MAX_READS: usize = 16;

/// A lock object as the store lists it.
#[derive(Debug, Clone, Copy)]
pub(super) struct LockEntry {
    pub scope: LockScope,
    pub number: u64,
    /// By the store's clock.
    pub modified: DateTime<Utc>,
}

/// A lock object, and what it holds.
pub(super) type FoundLock = (LockEntry, LockRecord);

impl LockEntry {
    /// Its name within the run.
    pub(super) fn object(&self) -> String {
        object(self.scope, self.number)
    }
}

/// Name of a lock object within the run.
pub(super) fn object(scope: LockScope, number: u64) -> String {
    format!("{LOCK}/{}/{number:010}.json", scope.directory())
}

/// Lists all lock objects of a run. What does not look like one is passed over.
pub(super) async fn list(run: &RunStore) -> Result<Vec<LockEntry>, StoreError> {
    let root = run.path(LOCK);
    let listed = within("list", run, LOCK, run.list(LOCK)).await?;
    let entry = |meta: object_store::ObjectMeta| {
        let mut parts = meta.location.prefix_match(&root)?;
        let scope = LockScope::from_directory(parts.next()?.as_ref())?;
        let number = parts.next()?.as_ref().strip_suffix(".json")?.parse().ok()?;
        Some(LockEntry {
            scope,
            number,
            modified: meta.last_modified,
        })
    };
    Ok(listed.into_iter().filter_map(entry).collect())
}

/// Reads locks, but for those that have gone since they were listed.
pub(super) async fn read(
    run: &RunStore,
    entries: impl IntoIterator<Item = LockEntry>,
) -> Result<Vec<FoundLock>, StoreError> {
    let reads = entries.into_iter().map(|entry| async move {
        let found = record(run, &entry.object(), entry.modified).await?;
        Ok(found.map(|record| (entry, record)))
    });
    stream::iter(reads)
        .buffered(MAX_READS)
        .try_filter_map(async |found| Ok(found))
        .try_collect()
        .await
}

/// Reads a lock object that was written at `modified`, `None` where there is none.
pub(super) async fn record(
    run: &RunStore,
    object: &str,
    modified: DateTime<Utc>,
) -> Result<Option<LockRecord>, StoreError> {
    let found = within("read", run, object, run.get(object)).await?;
    Ok(found.map(|bytes| {
        let record = serde_json::from_slice(&bytes);
        record.unwrap_or_else(|_| LockRecord::unreadable(modified))
    }))
}

/// Creates the lock object, unless there is one. Says whether it did.
pub(super) async fn create(
    run: &RunStore,
    object: &str,
    record: &LockRecord,
) -> Result<bool, StoreError> {
    let create = run.create(object, run.json(object, record)?);
    within("write", run, object, create).await
}

/// Writes the lock object anew.
pub(super) async fn renew(
    run: &RunStore,
    object: &str,
    record: &LockRecord,
) -> Result<(), StoreError> {
    let put = run.put(object, run.json(object, record)?);
    within("write", run, object, put).await
}

/// Asks the store's clock: it stamps an object that is written for this.
pub(super) async fn clock(run: &RunStore, owner: &str) -> Result<DateTime<Utc>, StoreError> {
    let object = format!("{LOCK}/clock/{owner}");
    within("write", run, &object, run.put(&object, Bytes::new())).await?;
    let path = run.path(&object);
    let listed = within("list", run, LOCK, run.list(LOCK)).await;
    let removed = remove(run, &object).await;
    let found = listed?.into_iter().find(|meta| meta.location == path);
    removed?;
    let found = found.map(|meta| meta.last_modified);
    found.ok_or_else(|| {
        run.failed("find", &object)(object_store::Error::NotFound {
            path: path.to_string(),
            source: "it was deleted as soon as it was written".into(),
        })
    })
}

/// Deletes a lock object, and on a local disk the directories that it leaves empty.
pub(super) async fn remove(run: &RunStore, object: &str) -> Result<(), StoreError> {
    let path = run.path(object);
    within("delete", run, object, run.delete(&path)).await?;
    if let Some(root) = run.local_path() {
        let file = root.join(object);
        for directory in file.ancestors().skip(1).take(2) {
            // One that is not empty stays.
            let _ = tokio::fs::remove_dir(directory).await;
        }
    }
    Ok(())
}

async fn within<T>(
    action: &'static str,
    run: &RunStore,
    object: &str,
    work: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    run.within(DEADLINE, action, object, work).await
}

/// Takes an epoch higher than all that were ever taken.
pub(super) async fn begin_epoch(run: &RunStore, record: &LockRecord) -> Result<u64, StoreError> {
    let text = run.json(WRITERS, record)?;
    let mut epoch = newest_epoch(run).await? + 1;
    loop {
        let object = format!("{WRITERS}/{epoch:010}.json");
        let create = run.create(&object, text.clone());
        if within("create", run, &object, create).await? {
            return Ok(epoch);
        }
        // Another writer was quicker, or an answer was lost: then the epoch is nobody's.
        epoch += 1;
    }
}

async fn newest_epoch(run: &RunStore) -> Result<u64, StoreError> {
    let listed = within("list", run, WRITERS, run.list(WRITERS)).await?;
    let epochs = listed.iter().filter_map(|object| {
        let name = object.location.filename()?;
        name.strip_suffix(".json")?.parse::<u64>().ok()
    });
    Ok(epochs.max().unwrap_or_default())
}
