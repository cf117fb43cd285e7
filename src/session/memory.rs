use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use datafusion::common::{Result, resources_datafusion_err};
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};

/// A pool that sends to temporary files what can go there, and refuses nobody else.
///
/// Sorts and groups are what grows with the number of rollouts, and they lose little by going to disk.
/// What can't (the small side of a join) must get what it needs: a limit there would not save memory
/// but fail a query. The same holds for what takes less than its share of the limit while others hold
/// the rest, and for groups that are merged from files, which can't go there again: the lists of a few
/// can be long, so each who merges may have the limit for itself.
#[derive(Debug)]
pub(super) struct Spilling {
    limit: usize,
    spillable: AtomicUsize,
    others: AtomicUsize,
    /// Those who can spill, whether they hold something or not.
    consumers: AtomicUsize,
    /// Those who group and were refused something, by their number.
    grouping: Mutex<HashMap<usize, Phase>>,
}

/// What somebody who groups is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It was refused something, and writes files.
    Writing,
    /// It gave everything back, which it does when it begins to merge its files.
    Merging,
}

/// In the names of those who group.
const GROUPS: &str = "AggregateStream";

impl Spilling {
    /// What can go to temporary files has `limit` bytes in all.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            spillable: AtomicUsize::new(0),
            others: AtomicUsize::new(0),
            consumers: AtomicUsize::new(0),
            grouping: Mutex::default(),
        }
    }

    fn grouping(&self) -> MutexGuard<'_, HashMap<usize, Phase>> {
        self.grouping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn account(&self, reservation: &MemoryReservation) -> &AtomicUsize {
        match reservation.consumer().can_spill() {
            true => &self.spillable,
            false => &self.others,
        }
    }
}

impl fmt::Display for Spilling {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "{}({} bytes)", self.name(), self.limit)
    }
}

impl MemoryPool for Spilling {
    fn name(&self) -> &str {
        "spilling"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        let one = usize::from(consumer.can_spill());
        self.consumers.fetch_add(one, Ordering::Relaxed);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        let one = usize::from(consumer.can_spill());
        self.consumers.fetch_sub(one, Ordering::Relaxed);
        self.grouping().remove(&consumer.id());
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.account(reservation)
            .fetch_add(additional, Ordering::Relaxed);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.account(reservation)
            .fetch_sub(shrink, Ordering::Relaxed);
        if reservation.size() == 0
            && let Some(phase) = self.grouping().get_mut(&reservation.consumer().id())
        {
            *phase = Phase::Merging;
        }
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let wanted = self.spillable.load(Ordering::Relaxed) + additional;
        // What holds nothing has nothing to spill: its first batch is let in, however large.
        let can_spill = reservation.consumer().can_spill() && reservation.size() > 0;
        let share = self.limit / self.consumers.load(Ordering::Relaxed).max(1);
        let is_large = reservation.size() + additional > share;
        let consumer = reservation.consumer();
        let merges = self.grouping().get(&consumer.id()) == Some(&Phase::Merging);
        let is_too_much = match merges {
            true => reservation.size() + additional > self.limit,
            false => is_large && wanted > self.limit,
        };
        let is_refused = can_spill && is_too_much;
        if is_refused {
            if consumer.name().contains(GROUPS) {
                self.grouping().insert(consumer.id(), Phase::Writing);
            }
            return Err(resources_datafusion_err!(
                "{self}: {} wants {wanted} bytes",
                consumer.name()
            ));
        }
        self.grow(reservation, additional);
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.spillable.load(Ordering::Relaxed) + self.others.load(Ordering::Relaxed)
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Infinite
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn what_can_spill_is_refused_beyond_the_limit_but_not_its_first_batch() {
        let pool: Arc<dyn MemoryPool> = Arc::new(Spilling::new(100));
        let sort = MemoryConsumer::new("ExternalSorter[0]")
            .with_can_spill(true)
            .register(&pool);
        assert!(sort.try_grow(500).is_ok());
        assert!(sort.try_grow(1).is_err());
        sort.free();
        assert!(sort.try_grow(60).is_ok() && sort.try_grow(40).is_ok());
        let other = MemoryConsumer::new("FinalHashAggregateStream[0]")
            .with_can_spill(true)
            .register(&pool);
        assert!(other.try_grow(20).is_ok(), "its first");
        assert!(other.try_grow(30).is_ok(), "within its half");
        assert!(other.try_grow(1).is_err());
        other.shrink(20);
        assert!(other.try_grow(100).is_err(), "it goes on to write");
        other.free();
        assert!(
            other.try_grow(60).is_ok() && other.try_grow(40).is_ok(),
            "it merges"
        );
        assert!(other.try_grow(1).is_err(), "more than the limit by itself");
        other.free();
        assert!(other.try_grow(50).is_ok());
        let join = MemoryConsumer::new("HashJoinInput").register(&pool);
        assert!(join.try_grow(1 << 30).is_ok());
        assert_eq!(pool.reserved(), 150 + (1 << 30));
    }
}
