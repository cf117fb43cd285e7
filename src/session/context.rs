//! Sessions over runs: their configuration, their memory, and the error of a query that fails. A session with a bound on
//! its memory fails if there is no place for temporary files.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::common::{Result, resources_datafusion_err};
use datafusion::error::DataFusionError;
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::prelude::{SessionConfig, SessionContext};

use super::plain;
use crate::error::{Error, FAILURE, Fatal};
use crate::store::{RunStore, StoreError};

/// Returns the configuration from which every session starts.
pub fn config() -> SessionConfig {
    let mut config = SessionConfig::new().with_information_schema(true);
    // A run's tables are read with the schema that is declared for them, never with one inferred.
    config.options_mut().execution.parquet.skip_metadata = true;
    config.options_mut().execution.collect_statistics = false;
    config
}

/// Makes a session for queries that take few rows of all of a run: one partition, so that rows keep an order from the first
/// sort to the last group. What can go to temporary files is kept below `memory` bytes.
pub fn measuring(memory: usize) -> Result<SessionContext> {
    bounded(config().with_target_partitions(1), memory)
}

/// Makes a session for queries that read all of a run and need no order: on all cores. What can go to temporary files is
/// kept below `memory` bytes.
pub fn gathering(memory: usize) -> Result<SessionContext> {
    bounded(config(), memory)
}

fn bounded(config: SessionConfig, memory: usize) -> Result<SessionContext> {
    let mut config = config.with_batch_size(1024);
    let options = config.options_mut();
    options.execution.sort_spill_reservation_bytes = memory / 8;
    // The query writes the small side of each join first, where it must stay, so that the other side keeps its order.
    options.optimizer.join_reordering = false;
    let runtime = spilling(memory)?;
    Ok(SessionContext::new_with_config_rt(config, runtime))
}

/// Makes the environment of a session that keeps below `memory` bytes what can go to temporary files.
pub fn spilling(memory: usize) -> Result<Arc<RuntimeEnv>> {
    RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(Spilling::new(memory)))
        .build_arc()
}

/// A query that failed, in plain words.
#[derive(Debug)]
pub(crate) struct QueryError {
    error: DataFusionError,
    /// What else to say: which name may have been meant.
    hint: String,
}

impl QueryError {
    /// An error of which there is more to say.
    pub(crate) fn with_hint(error: DataFusionError, hint: String) -> Self {
        Self { error, hint }
    }
}

impl fmt::Display for QueryError {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "{}{}", plain(&self.error), self.hint)
    }
}

impl StdError for QueryError {
    /// The cause of an error of ours. The engine's own errors have none that says more in plain words.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self.error.find_root() {
            DataFusionError::External(inner) => Some(inner.as_ref()),
            _ => None,
        }
    }
}

impl Fatal for QueryError {
    fn exit_code(&self) -> u8 {
        FAILURE
    }
}

impl From<DataFusionError> for Error {
    /// Finds the store error inside, if there is one.
    fn from(error: DataFusionError) -> Self {
        match error {
            DataFusionError::External(inner) => match inner.downcast::<StoreError>() {
                Ok(store) => (*store).into(),
                Err(other) => {
                    QueryError::with_hint(DataFusionError::External(other), String::new()).into()
                }
            },
            DataFusionError::Context(_, inner) => Self::from(*inner),
            other => QueryError::with_hint(other, String::new()).into(),
        }
    }
}

impl From<StoreError> for DataFusionError {
    fn from(error: StoreError) -> Self {
        Self::External(Box::new(error))
    }
}

/// Lets a session read the files in a run's store.
pub fn register_store(session: &SessionContext, run: &RunStore) {
    session.register_object_store(run.base(), Arc::clone(run.object_store()));
}

/// A memory pool that makes consumers spill if they can, and refuses no others. DataFusion's `FairSpillPool` refuses
/// a join the memory that others hold, and gives every sort the same share.
///
/// Sorts and groups grow with the number of rollouts, and lose little by going to disk. What can't (the small side of a
/// join) must get what it needs: a limit there would not save memory but fail a query. The same holds for what takes less
/// than its share of the limit while others hold the rest, and for groups that are merged from files, which can't go there
/// again: the lists of a few can be long, so each merge may have the limit for itself.
#[derive(Debug)]
struct Spilling {
    limit: usize,
    spillable: AtomicUsize,
    others: AtomicUsize,
    /// The number of consumers that can spill, whether or not they hold memory.
    consumers: AtomicUsize,
    /// The grouping consumers that were refused memory, by id.
    grouping: Mutex<HashMap<usize, Phase>>,
}

/// The phase of a consumer that groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The consumer was refused memory, and writes files.
    Writing,
    /// The consumer gave all memory back, which it does when it begins to merge its files.
    Merging,
}

/// A part of the names of grouping consumers.
const GROUPS: &str = "AggregateStream";

impl Spilling {
    fn new(limit: usize) -> Self {
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
        if reservation.consumer().can_spill() {
            &self.spillable
        } else {
            &self.others
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
        let account = self.account(reservation);
        account.fetch_add(additional, Ordering::Relaxed);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        let account = self.account(reservation);
        account.fetch_sub(shrink, Ordering::Relaxed);
        if reservation.size() == 0
            && let Some(phase) = self.grouping().get_mut(&reservation.consumer().id())
        {
            *phase = Phase::Merging;
        }
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let wanted = self.spillable.load(Ordering::Relaxed) + additional;
        // A consumer that holds nothing has nothing to spill, so its first batch is granted, however large.
        let can_spill = reservation.consumer().can_spill() && reservation.size() > 0;
        let share = self.limit / self.consumers.load(Ordering::Relaxed).max(1);
        let is_large = reservation.size() + additional > share;
        let consumer = reservation.consumer();
        let merges = self.grouping().get(&consumer.id()) == Some(&Phase::Merging);
        let is_too_much = if merges {
            reservation.size() + additional > self.limit
        } else {
            is_large && wanted > self.limit
        };
        if can_spill && is_too_much {
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
