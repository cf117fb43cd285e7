//! [`Slots`]: how many shards an executor sends at a time.

use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

/// The slots of an executor, of which Ballista takes one for each shard. A shard lends its slot to another when all its
/// rollouts were sent, so that calls are in flight while it waits for its last answers.
#[derive(Debug)]
pub(super) struct Slots {
    count: usize,
    /// Slots in which no shard sends.
    free: Arc<Semaphore>,
    /// Slots that shards had lent when they ended, until others have sent all.
    lent: Mutex<JoinSet<()>>,
}

impl Slots {
    pub(super) fn new(count: usize) -> Self {
        Self {
            count,
            free: Arc::new(Semaphore::new(count)),
            lent: Mutex::default(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Returns the free slots, for Ballista.
    pub(super) fn free(&self) -> Arc<Semaphore> {
        Arc::clone(&self.free)
    }

    /// Lends the slot of a shard, until [`Self::take_back`].
    pub(super) fn lend(&self) {
        self.free.add_permits(1);
    }

    /// Takes a slot back when its shard ends, at once or from the next shard that has sent all: Ballista gives it back, too.
    pub(super) fn take_back(&self) {
        let mut slot = Box::pin(self.free().acquire_owned());
        let forget = |slot: Result<OwnedSemaphorePermit, AcquireError>| {
            if let Ok(slot) = slot {
                slot.forget();
            }
        };
        // Asked once, so that it is in the queue before Ballista asks for what it has given back.
        if let Some(slot) = (&mut slot).now_or_never() {
            return forget(slot);
        }
        let mut lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        while lent.try_join_next().is_some() {}
        lent.spawn(async move { forget(slot.await) });
    }
}
