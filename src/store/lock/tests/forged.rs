//! Places to lock, and locks that others left there.

use std::time::Duration;

use chrono::Utc;
use tempfile::TempDir;

use crate::store::lock::{LockRecord, LockScope, directory};
use crate::store::{LockOptions, RunStore, StoreError};

pub(super) const HOUR: Duration = Duration::from_secs(3600);

pub(super) fn memory() -> RunStore {
    RunStore::open("memory:///sweeps/a", None).unwrap()
}

/// One run on a local disk and one in an object store. The directory is deleted when dropped.
pub(super) fn places() -> (TempDir, [RunStore; 2]) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run");
    let local = RunStore::open(path.to_str().unwrap(), None).unwrap();
    (directory, [local, memory()])
}

pub(super) fn scope(scope: LockScope) -> LockOptions {
    LockOptions {
        scope,
        ..LockOptions::default()
    }
}

pub(super) fn shard(index: u32, count: u32) -> LockOptions {
    scope(LockScope::Shard { index, count })
}

pub(super) fn breaking() -> LockOptions {
    LockOptions {
        break_existing: true,
        ..LockOptions::default()
    }
}

/// A lock of a process on another machine, last heard of `ago`.
pub(super) fn elsewhere(ago: Duration, lease: Duration) -> LockRecord {
    let mut record = LockRecord::new(lease, Utc::now() - ago);
    record.process.host = "node-17".to_owned();
    record.process.boot_id = Some("another".to_owned());
    record
}

/// Puts a lock of another there.
pub(super) async fn leave(run: &RunStore, number: u64, record: &LockRecord) -> String {
    let object = directory::object(LockScope::Run, number);
    directory::renew(run, &object, record).await.unwrap();
    object
}

pub(super) async fn objects(run: &RunStore) -> Vec<String> {
    let listed = directory::list(run).await.unwrap();
    let mut names: Vec<_> = listed.iter().map(|entry| entry.object()).collect();
    names.sort();
    names
}

/// Host of the one that is in the way.
pub(super) fn refused_for(error: StoreError) -> String {
    match error {
        StoreError::Locked { holder, .. } => holder.record.process.host,
        other => panic!("{other}"),
    }
}
