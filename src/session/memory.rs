use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::common::{Result, resources_datafusion_err};
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation};

/// A pool that sends to temporary files what can go there, and refuses nobody else.
///
/// Sorts and groups are what grows with the number of rollouts, and they lose little by going to disk.
/// What can't (the small side of a join) must get what it needs: a limit there would not save memory
/// but fail a query.
#[derive(Debug)]
pub(super) struct Spilling {
    limit: usize,
    spillable: AtomicUsize,
    others: AtomicUsize,
}

impl Spilling {
    /// What can go to temporary files has `limit` bytes in all.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            spillable: AtomicUsize::new(0),
            others: AtomicUsize::new(0),
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
        if can_spill && wanted > self.limit {
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

    use datafusion::execution::memory_pool::MemoryConsumer;

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
        let join = MemoryConsumer::new("HashJoinInput").register(&pool);
        assert!(join.try_grow(1 << 30).is_ok());
        assert_eq!(pool.reserved(), 100 + (1 << 30));
    }
}
