use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::common::{Result, resources_datafusion_err};
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};

/// A pool that sends to temporary files what can go there, and refuses nobody else.
///
/// Sorts and groups are what grows with the number of rollouts, and they lose little by going to disk.
/// What can't (the small side of a join) must get what it needs: a limit there would not save memory
/// but fail a query. The same holds for what takes less than its share of the limit while others hold
/// the rest: groups that are merged from files can't go there again.
#[derive(Debug)]
pub(super) struct Spilling {
    limit: usize,
    spillable: AtomicUsize,
    others: AtomicUsize,
    /// Those who can spill, whether they hold something or not.
    consumers: AtomicUsize,
}

impl Spilling {
    /// What can go to temporary files has `limit` bytes in all.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            spillable: AtomicUsize::new(0),
            others: AtomicUsize::new(0),
            consumers: AtomicUsize::new(0),
        }
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
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.account(reservation)
            .fetch_add(additional, Ordering::Relaxed);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.account(reservation)
            .fetch_sub(shrink, Ordering::Relaxed);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let wanted = self.spillable.load(Ordering::Relaxed) + additional;
        // What holds nothing has nothing to spill: its first batch is let in, however large.
        let can_spill = reservation.consumer().can_spill() && reservation.size() > 0;
        let share = self.limit / self.consumers.load(Ordering::Relaxed).max(1);
        let is_large = reservation.size() + additional > share;
        if can_spill && is_large && wanted > self.limit {
            return Err(resources_datafusion_err!(
                "{self}: {} wants {wanted} bytes",
                reservation.consumer().name()
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
        let join = MemoryConsumer::new("HashJoinInput").register(&pool);
        assert!(join.try_grow(1 << 30).is_ok());
        assert_eq!(pool.reserved(), 150 + (1 << 30));
    }
}
