//! The logs of dispatches of a process: [`DispatchLogs`] has one for each partition, a
//! [`PartitionLog`], and knows whether the disk has room for what all of them wait for.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::dispatch_log::DispatchLog;
use super::dispatch_record::DispatchRecord;
use super::{StoreError, Writer};
use crate::call::{CallJournal, CallStart};

/// How often the disk is asked how much room there is.
const ROOM_CHECK: Duration = Duration::from_millis(100);

/// Room on the disk that is kept for what is not answers.
const ROOM: u64 = 512 * 1024;

/// What an answer is taken for until one has come, and what all of them together are taken for at most: not every
/// sweep of many small answers has gigabytes to spare.
const UNKNOWN_ANSWER: u64 = 64 * 1024;
const UNKNOWN_ANSWERS: u64 = 128 * 1024 * 1024;

/// The logs of all partitions of a process.
#[derive(Debug)]
pub struct DispatchLogs {
    directory: PathBuf,
    writer: Arc<Writer>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    logs: Vec<Arc<DispatchLog>>,
    /// Bytes of answers that each of them waits for.
    answers: Vec<u64>,
    room_checked: Option<Instant>,
    /// Bytes that were free then beyond what was needed, and have not been asked for since.
    spare: u64,
}

impl DispatchLogs {
    /// The logs of a writer in `directory`. Nothing is written yet.
    pub fn new(directory: &Path, writer: Arc<Writer>) -> Self {
        Self {
            directory: directory.to_owned(),
            writer,
            state: Mutex::default(),
        }
    }

    /// The log of a partition.
    pub fn open(self: &Arc<Self>, partition: usize) -> PartitionLog {
        let writer = Arc::clone(&self.writer);
        let log = Arc::new(DispatchLog::new(&self.directory, writer, partition));
        let mut state = self.state();
        state.logs.push(Arc::clone(&log));
        state.answers.push(0);
        PartitionLog {
            place: state.answers.len() - 1,
            log,
            logs: Arc::clone(self),
        }
    }

    /// Bytes of the answers of so many calls, each of which is as large as `measured`, or nobody knows how large
    /// where that is zero.
    pub fn expected(calls: usize, measured: f64) -> u64 {
        if measured > 0.0 {
            (calls as f64 * measured) as u64
        } else {
            UNKNOWN_ANSWERS.min(UNKNOWN_ANSWER.saturating_mul(calls as u64))
        }
    }

    /// Removes all logs: what came of every call is in the journal or in parts.
    ///
    /// # Errors
    /// The system refused.
    pub fn close(&self) -> Result<(), StoreError> {
        let logs = std::mem::take(&mut self.state().logs);
        logs.iter().try_for_each(|log| log.close())
    }

    fn check_room(&self, place: usize, answers: u64, new: u64) -> Result<(), StoreError> {
        let mut state = self.state();
        if let Some(own) = state.answers.get_mut(place) {
            *own = answers;
        }
        let is_recent = |checked: Instant| checked.elapsed() < ROOM_CHECK;
        let wanted = new.saturating_mul(2);
        if state.room_checked.is_some_and(is_recent) && wanted <= state.spare {
            state.spare -= wanted;
            return Ok(());
        }
        // The directory may not be there yet.
        let there = self.directory.ancestors().find(|path| path.exists());
        let Some(Ok(disk)) = there.map(rustix::fs::statvfs) else {
            return Ok(());
        };
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let all = state.answers.iter().copied().fold(0, u64::saturating_add);
        let needed = ROOM + all.saturating_mul(2);
        if free < needed {
            return Err(StoreError::DiskFull {
                path: self.directory.clone(),
                free: bytesize::ByteSize(free),
                needed: bytesize::ByteSize(needed),
            });
        }
        state.room_checked = Some(Instant::now());
        state.spare = free - needed;
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The log of one partition.
#[derive(Debug)]
pub struct PartitionLog {
    place: usize,
    log: Arc<DispatchLog>,
    logs: Arc<DispatchLogs>,
}

impl PartitionLog {
    /// Makes sure that the disk has room for the answers that all partitions wait for and some more. This
    /// one waits for so many bytes, of which `new` are those of calls that are about to be sent.
    ///
    /// # Errors
    /// It has not: nothing more should be sent.
    pub fn check_room(&self, answers: u64, new: u64) -> Result<(), StoreError> {
        self.logs.check_room(self.place, answers, new)
    }

    /// Notes calls that are about to be sent.
    ///
    /// # Errors
    /// The disk is full or broken; then none of them is noted, and none may be sent.
    pub fn record(&self, calls: impl Iterator<Item = DispatchRecord>) -> Result<(), StoreError> {
        self.log.record(calls)
    }

    /// It is worth beginning another file.
    pub fn is_long(&self) -> bool {
        self.log.is_long()
    }

    /// Begins another file with the calls that are in flight.
    ///
    /// # Errors
    /// The disk is full or broken.
    pub fn rotate(
        &self,
        in_flight: impl Iterator<Item = (DispatchRecord, Vec<CallStart>)>,
    ) -> Result<(), StoreError> {
        self.log.rotate(in_flight)
    }

    /// Where the calls within attempts are noted.
    pub fn calls(&self) -> Arc<dyn CallJournal> {
        Arc::clone(&self.log) as _
    }
}
