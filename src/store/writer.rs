//! [`Writer`]: names the files that the holder of a lock writes, and lets it publish while it holds the lock.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::{RwLock, RwLockReadGuard, watch};
use tokio::time::Instant;

use super::LockScope;
use super::journal::{Origin, SegmentName};

/// A writer of a run, valid for as long as its lock is held.
///
/// Its epoch is higher than that of every earlier writer, and unique. So the names of its segments are unique, too.
#[derive(Debug)]
pub struct Writer {
    epoch: u64,
    scope: LockScope,
    next: AtomicU32,
    lease: Option<Lease>,
    publishing: RwLock<()>,
}

/// The time during which nobody else may take over the lock.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) ends: watch::Receiver<Instant>,
    /// The time that must be left on the lease for something to be published.
    pub(super) margin: Duration,
}

impl Writer {
    pub(super) fn new(epoch: u64, scope: LockScope, lease: Lease) -> Self {
        Self {
            lease: Some(lease),
            scope,
            ..Self::unlocked(epoch)
        }
    }

    /// Makes a writer without a lock, of a whole run that nobody else can write to.
    pub fn unlocked(epoch: u64) -> Self {
        Self {
            epoch,
            scope: LockScope::Run,
            next: AtomicU32::new(0),
            lease: None,
            publishing: RwLock::new(()),
        }
    }

    /// Its epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The share of the run that it writes.
    pub fn scope(&self) -> LockScope {
        self.scope
    }

    /// Makes a new name for a file of its journal.
    pub fn segment(&self, partition: usize) -> SegmentName {
        self.name(Origin::Partition(partition))
    }

    /// Makes a new name for what it recovers of a writer of the share `of`.
    pub fn recovered(&self, of: LockScope) -> SegmentName {
        if of == self.scope {
            self.segment(0)
        } else {
            self.name(Origin::Recovered)
        }
    }

    fn name(&self, origin: Origin) -> SegmentName {
        SegmentName {
            epoch: self.epoch,
            scope: self.scope,
            origin,
            number: self.next.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Waits until the lock is certain to be held for a while. Everything is published under a permit: a process that
    /// was stopped for longer than its lease finds out here, before it does harm. Never returns if the lock is lost.
    pub async fn permit(&self) -> RwLockReadGuard<'_, ()> {
        let permit = self.publishing.read().await;
        self.held().await;
        permit
    }

    /// Waits as [`Self::permit`] does, between the steps of a publication under one permit.
    pub(super) async fn held(&self) {
        if let Some(lease) = &self.lease {
            let mut ends = lease.ends.clone();
            let is_held = |ends: &Instant| *ends > Instant::now() + lease.margin;
            if ends.wait_for(is_held).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until nothing is being published.
    pub(super) async fn quiet(&self) {
        let _ = self.publishing.write().await;
    }
}
