use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::common::{Result, resources_datafusion_err};
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation};

/// A pool that sends sorts to temporary files early, and refuses nobody else.
///
/// The sorts of a metric query are what grows with the number of rollouts, and they lose little by
/// going to disk. What can't (the small side of a join) must get what it needs: a limit there would
/// not save memory but fail a query.
#[derive(Debug)]
pub(super) struct SpillingSorts {
    limit: usize,
    sorts: AtomicUsize,
    others: AtomicUsize,
}

impl SpillingSorts {
    /// Sorts have `limit` bytes among them.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            sorts: AtomicUsize::new(0),
            others: AtomicUsize::new(0),
        }
    }

    fn account(&self, reservation: &MemoryReservation) -> &AtomicUsize {
        if is_sort(reservation) {
            &self.sorts
        } else {
            &self.others
        }
    }
}

fn is_sort(reservation: &MemoryReservation) -> bool {
    let consumer = reservation.consumer();
    consumer.can_spill() && consumer.name().starts_with("ExternalSorter")
}

impl fmt::Display for SpillingSorts {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "{}({} bytes for sorts)", self.name(), self.limit)
    }
}

impl MemoryPool for SpillingSorts {
    fn name(&self) -> &str {
        "spilling_sorts"
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
        let wanted = self.sorts.load(Ordering::Relaxed) + additional;
        // A sort that holds nothing has nothing to spill: its first batch is let in, however large.
        if is_sort(reservation) && reservation.size() > 0 && wanted > self.limit {
            return Err(resources_datafusion_err!(
                "{self}: a sort wants {wanted} bytes"
            ));
        }
        self.grow(reservation, additional);
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.sorts.load(Ordering::Relaxed) + self.others.load(Ordering::Relaxed)
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
    fn a_sort_is_refused_beyond_the_limit_but_not_its_first_batch() {
        let pool: Arc<dyn MemoryPool> = Arc::new(SpillingSorts::new(100));
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
