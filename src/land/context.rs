use std::path::PathBuf;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use crate::progress::Progress;
use crate::store::{TableSink, Writer};

/// More compactions at a time than this would take memory, and no store is so slow.
const MOST_COMPACTIONS: usize = 8;

/// Where small parts stay, a segment may be as old as this share of the time that the sweep has taken: a sweep of ten
/// hours leaves tens of small parts then, and not hundreds.
const SHARE: u32 = 8;

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
    /// How old the first row of a segment may be before the segment is made into parts; where small parts stay, it
    /// may be older in a long sweep.
    pub part_interval: Duration,
    /// Small parts are not made into few at the end, so they are made more rarely as time goes on.
    pub small_parts_stay: bool,
    /// When the sweep began.
    pub(super) began: Instant,
    /// The sweep's counts.
    pub progress: Arc<Progress>,
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
        small_parts_stay: bool,
        progress: Arc<Progress>,
    ) -> Self {
        let cores = available_parallelism().map_or(1, usize::from);
        Self {
            sink,
            journal,
            writer,
            part_interval,
            small_parts_stay,
            began: Instant::now(),
            progress,
            compactions: Arc::new(Semaphore::new(cores.min(MOST_COMPACTIONS))),
        }
    }

    /// How old a segment may become that is begun when the sweep has taken `elapsed`.
    pub(super) fn oldest(&self, elapsed: Duration) -> Duration {
        match self.small_parts_stay {
            true => self.part_interval.max(elapsed / SHARE),
            false => self.part_interval,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{ParquetSink, RunStore};

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn parts_that_stay_small_are_made_more_rarely_as_time_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let run = RunStore::open(directory.path().to_str().unwrap(), None).unwrap();
        let writer = Arc::new(Writer::unlocked(1));
        let oldest = |small_parts_stay, elapsed: Duration| {
            let sink = Arc::new(ParquetSink::new(run.clone(), Arc::clone(&writer)));
            let (journal, progress) = (directory.path().into(), Arc::default());
            let (writer, interval) = (Arc::clone(&writer), 5 * MINUTE);
            let context =
                LandContext::new(sink, journal, writer, interval, small_parts_stay, progress);
            context.oldest(elapsed)
        };
        assert_eq!(oldest(true, 30 * MINUTE), 5 * MINUTE);
        assert_eq!(oldest(true, 80 * MINUTE), 10 * MINUTE);
        assert_eq!(oldest(false, 80 * MINUTE), 5 * MINUTE);
    }
}
