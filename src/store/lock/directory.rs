use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::{StreamExt, TryStreamExt, stream};

use super::{LockRecord, LockScope};
use crate::store::{RunStore, StoreError, deadline};

/// Directory of the locks within a run.
const LOCK: &str = "lock";

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

/// All lock objects of a run. What does not look like one is passed over.
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

/// What the locks hold, but for those that have gone since they were listed.
pub(super) async fn read(
    run: &RunStore,
    entries: impl IntoIterator<Item = LockEntry>,
) -> Result<Vec<(LockEntry, LockRecord)>, StoreError> {
    let reads = entries.into_iter().map(|entry| async move {
        let object = entry.object();
        let found = get(run, &object).await?;
        Ok(found.map(|bytes| {
            let record = serde_json::from_slice(&bytes);
            let record = record.unwrap_or_else(|_| LockRecord::unreadable(entry.modified));
            (entry, record)
        }))
    });
    stream::iter(reads)
        .buffered(MAX_READS)
        .try_filter_map(async |found| Ok(found))
        .try_collect()
        .await
}

/// Owner of the lock object, `None` where there is none.
pub(super) async fn owner(run: &RunStore, object: &str) -> Result<Option<String>, StoreError> {
    let record = |bytes: Bytes| serde_json::from_slice::<LockRecord>(&bytes);
    let found = get(run, object).await?;
    Ok(found.map(|bytes| record(bytes).map_or_else(|_| String::new(), |record| record.owner)))
}

async fn get(run: &RunStore, object: &str) -> Result<Option<Bytes>, StoreError> {
    within("read", run, object, run.get(object)).await
}

/// Creates the lock object, or renews it. Says whether it did: where it is to be created, there
/// may be one.
pub(super) async fn write(
    run: &RunStore,
    object: &str,
    record: &LockRecord,
    create: bool,
) -> Result<bool, StoreError> {
    let mut text = serde_json::to_vec_pretty(record).map_err(|source| StoreError::Record {
        object: run.display(object),
        reason: source.to_string(),
    })?;
    text.push(b'\n');
    let work = async {
        match create {
            true => run.create(object, text).await,
            false => run.put(object, text).await.map(|()| true),
        }
    };
    within("write", run, object, work).await
}

/// What the store's clock says: the time of an object that is written for it.
pub(super) async fn clock(run: &RunStore, owner: &str) -> Result<DateTime<Utc>, StoreError> {
    let object = format!("{LOCK}/clock/{owner}");
    within("write", run, &object, run.put(&object, Bytes::new())).await?;
    let path = run.path(&object);
    let listed = within("list", run, LOCK, run.list(LOCK)).await;
    let removed = remove(run, &object).await;
    let found = listed?.into_iter().find(|meta| meta.location == path);
    removed?;
    found
        .map(|meta| meta.last_modified)
        .ok_or_else(|| StoreError::Object {
            action: "find",
            object: run.display(&object),
            source: object_store::Error::NotFound {
                path: path.to_string(),
                source: "it was deleted as soon as it was written".into(),
            },
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
    let limit = run.deadline(DEADLINE);
    deadline::within(limit, action, || run.display(object), work).await
}
