use std::path::PathBuf;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::store::{TableSink, Writer};
use crate::tally::Tally;

/// More compactions at a time than this would take memory, and no store is so slow.
const MOST_COMPACTIONS: usize = 8;

/// What [`LandExec`](super::LandExec) needs that is not in the plan: it travels as an extension of
/// the session's configuration.
#[derive(Debug)]
pub struct LandContext {
    /// Where rows become parts of tables.
    pub sink: Arc<dyn TableSink>,
    /// Local directory of the journal.
    pub journal: PathBuf,
    /// Who writes.
    pub writer: Arc<Writer>,
    /// How old the first row of a segment may be before the segment is made into parts.
    pub part_interval: Duration,
    /// The sweep's counts.
    pub tally: Arc<Tally>,
    /// Compactions that may run at a time, in all partitions together.
    pub(super) compactions: Arc<Semaphore>,
}

impl LandContext {
    /// Lands in the tables of `sink`, by way of segments of `writer` in the directory `journal`.
    pub fn new(
        sink: Arc<dyn TableSink>,
        journal: PathBuf,
        writer: Arc<Writer>,
        part_interval: Duration,
        tally: Arc<Tally>,
    ) -> Self {
        let cores = available_parallelism().map_or(1, usize::from);
        Self {
            sink,
            journal,
            writer,
            part_interval,
            tally,
            compactions: Arc::new(Semaphore::new(cores.min(MOST_COMPACTIONS))),
        }
    }
}
