//! The logs of dispatches of a process: a [`DispatchLog`] notes each call of a partition before it is sent, so that a call
//! whose end nobody saw is known. [`DispatchLogs`] knows whether the disk has room for what all partitions wait for.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::dispatch_record::{CallRecord, DISPATCHES, DispatchRecord, RECORD};
use super::journal::{JournalFile, in_directory};
use super::{StoreError, Writer};
use crate::call::{CallJournal, CallStart, RolloutKey};

/// A log of fewer dispatches is not long.
const LONG: u64 = 1 << 20;

/// How often the disk is asked how much room there is.
const ROOM_CHECK: Duration = Duration::from_millis(100);

/// Room on the disk that is kept for what is not answers.
const ROOM: u64 = 512 * 1024;

/// Bytes that an answer is taken for until one has come, and that all of them together are taken for at most: not every
/// sweep of many small answers has gigabytes to spare.
const UNKNOWN_ANSWER: u64 = 64 * 1024;
const UNKNOWN_ANSWERS: u64 = 128 * 1024 * 1024;

/// The logs of all partitions of a process.
#[derive(Debug)]
pub struct DispatchLogs {
    directory: PathBuf,
    writer: Arc<Writer>,
    room: Arc<Mutex<Room>>,
    open: Mutex<Vec<Arc<DispatchLog>>>,
}

/// What is known of the disk.
#[derive(Debug, Default)]
struct Room {
    /// Bytes of the answers that all partitions wait for.
    answers: u64,
    checked: Option<Instant>,
    /// Bytes that were free then beyond what was needed, and have not been asked for since.
    spare: u64,
}

impl DispatchLogs {
    /// The logs of a writer in `directory`. Nothing is written yet.
    pub fn new(directory: &Path, writer: Arc<Writer>) -> Self {
        Self {
            directory: directory.to_owned(),
            writer,
            room: Arc::default(),
            open: Mutex::default(),
        }
    }

    /// Begins the log of a partition.
    pub fn open(&self, partition: usize) -> Arc<DispatchLog> {
        let writer = Arc::clone(&self.writer);
        let log = Arc::new(DispatchLog {
            room: Arc::clone(&self.room),
            ..DispatchLog::new(&self.directory, writer, partition)
        });
        locked(&self.open).push(Arc::clone(&log));
        log
    }

    /// Estimates the bytes of the answers of so many calls. Each is as large as `measured`; zero means that nobody knows.
    pub fn expected(calls: usize, measured: f64) -> u64 {
        if measured > 0.0 {
            (calls as f64 * measured) as u64
        } else {
            UNKNOWN_ANSWERS.min(UNKNOWN_ANSWER.saturating_mul(calls as u64))
        }
    }

    /// Removes all logs: the outcome of every call is in the journal or in parts.
    pub fn close(&self) -> Result<(), StoreError> {
        let logs = mem::take(&mut *locked(&self.open));
        logs.iter().try_for_each(|log| log.close())
    }
}

fn locked<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The log of a partition's calls, in files of records of one size. What is noted survives the end of the process; a power
/// cut can lose the last of it.
#[derive(Debug)]
pub struct DispatchLog {
    directory: PathBuf,
    writer: Arc<Writer>,
    partition: usize,
    room: Arc<Mutex<Room>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    file: Option<LogFile>,
    /// The file before, whose calls may not all be in the journal yet.
    previous: Option<JournalFile>,
    /// Records that the last rotation carried over to the file.
    carried: u64,
    buffer: Vec<u8>,
    /// Bytes of the answers that the partition waits for.
    answers: u64,
}

#[derive(Debug)]
struct LogFile {
    file: File,
    place: JournalFile,
    records: u64,
}

impl LogFile {
    fn write(&mut self, records: &[u8]) -> Result<(), StoreError> {
        if let Err(source) = self.file.write_all(records) {
            // Half a record would put all after it out of step.
            let _ = self.file.set_len(self.records * RECORD as u64);
            return Err(StoreError::file("write", self.place.path())(source));
        }
        self.records += (records.len() / RECORD) as u64;
        Ok(())
    }
}

impl CallJournal for DispatchLog {
    fn note(&self, key: &RolloutKey, start: &CallStart) -> Result<(), String> {
        let mut record = Vec::with_capacity(RECORD);
        let (key, start) = (*key, *start);
        CallRecord { key, start }.encode(&mut record);
        let written = self.write(&mut locked(&self.state), &record);
        written.map_err(|error| error.to_string())
    }
}

impl DispatchLog {
    /// The log in `directory` of a partition of a writer. Nothing is written yet.
    pub fn new(directory: &Path, writer: Arc<Writer>, partition: usize) -> Self {
        Self {
            directory: directory.to_owned(),
            writer,
            partition,
            room: Arc::default(),
            state: Mutex::default(),
        }
    }

    /// Makes sure that the disk has room for the answers that all partitions wait for and some more. This one waits for
    /// so many bytes, of which `new` are those of calls that are about to be sent.
    ///
    /// # Errors
    /// There is no room: nothing more should be sent.
    pub fn check_room(&self, answers: u64, new: u64) -> Result<(), StoreError> {
        let before = mem::replace(&mut locked(&self.state).answers, answers);
        let mut room = locked(&self.room);
        room.answers = room.answers.saturating_sub(before).saturating_add(answers);
        let is_recent = |checked: Instant| checked.elapsed() < ROOM_CHECK;
        let wanted = new.saturating_mul(2);
        if room.checked.is_some_and(is_recent) && wanted <= room.spare {
            room.spare -= wanted;
            return Ok(());
        }
        // The directory may not be there yet.
        let there = self.directory.ancestors().find(|path| path.exists());
        let Some(Ok(disk)) = there.map(rustix::fs::statvfs) else {
            return Ok(());
        };
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let needed = ROOM.saturating_add(room.answers.saturating_mul(2));
        if free < needed {
            return Err(StoreError::DiskFull {
                path: self.directory.clone(),
                free: bytesize::ByteSize(free),
                needed: bytesize::ByteSize(needed),
            });
        }
        room.checked = Some(Instant::now());
        room.spare = free - needed;
        Ok(())
    }

    /// Notes calls that are about to be sent.
    ///
    /// # Errors
    /// The disk is full or broken; then none of them is noted, and none may be sent.
    pub fn record(&self, calls: impl Iterator<Item = DispatchRecord>) -> Result<(), StoreError> {
        let mut state = locked(&self.state);
        let mut buffer = mem::take(&mut state.buffer);
        buffer.clear();
        calls.for_each(|call| call.encode(&mut buffer));
        let written = self.write(&mut state, &buffer);
        state.buffer = buffer;
        written
    }

    fn write(&self, state: &mut State, records: &[u8]) -> Result<(), StoreError> {
        let log = match &mut state.file {
            Some(log) => log,
            none => none.insert(self.create()?),
        };
        log.write(records)
    }

    fn create(&self) -> Result<LogFile, StoreError> {
        let name = self.writer.segment(self.partition);
        let place = JournalFile::new(&self.directory, name, DISPATCHES);
        let created = in_directory(&self.directory, || {
            let mut options = OpenOptions::new();
            options.append(true).create_new(true).open(place.path())
        });
        let file = created.map_err(StoreError::file("create", place.path()))?;
        Ok(LogFile {
            file,
            place,
            records: 0,
        })
    }

    /// Whether another file should begin: this one is long, and at least twice what it began with. So however many calls
    /// are in flight, a dispatch is written again at most once.
    pub fn is_long(&self) -> bool {
        let state = locked(&self.state);
        let long = LONG.max(state.carried.saturating_mul(2));
        state.file.as_ref().is_some_and(|log| log.records >= long)
    }

    /// Begins another file with the calls that are in flight. The file before stays until the next time: by then, the
    /// outcomes of its other calls are in the journal.
    pub fn rotate(
        &self,
        in_flight: impl Iterator<Item = (DispatchRecord, Vec<CallStart>)>,
    ) -> Result<(), StoreError> {
        let mut records = Vec::new();
        // Whoever gives the calls within attempts may be waiting to note one. Those that are noted from here on are in the
        // file before, if not in the new one.
        for (call, starts) in in_flight {
            call.encode(&mut records);
            let key = call.key;
            let starts = starts.into_iter();
            starts.for_each(|start| CallRecord { key, start }.encode(&mut records));
        }
        let mut state = locked(&self.state);
        let mut next = self.create()?;
        next.write(&records)?;
        state.carried = next.records;
        let current = state.file.replace(next);
        let previous = mem::replace(&mut state.previous, current.map(|log| log.place));
        drop(state);
        previous.map_or(Ok(()), |file| file.remove())
    }

    /// Removes the log: the outcome of every call is in the journal or in parts.
    pub fn close(&self) -> Result<(), StoreError> {
        let state = mem::take(&mut *locked(&self.state));
        let mut files = state
            .previous
            .into_iter()
            .chain(state.file.map(|log| log.place));
        files.try_for_each(|file| file.remove())
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, RecordBatch};
    use arrow::datatypes::Int64Type;

    use super::super::dispatch_record::LoggedCalls;
    use super::*;
    use crate::outcome::Waited;

    fn call(task_index: i64) -> DispatchRecord {
        DispatchRecord {
            key: RolloutKey::new(task_index, 1, 2),
            dispatched_at_us: 3,
            waited: Waited {
                permit: Duration::from_micros(4),
                rate: Duration::from_micros(5),
            },
        }
    }

    fn tasks(directory: &Path) -> Vec<Vec<i64>> {
        let files = JournalFile::dispatch_logs(directory).unwrap();
        let read = |file: &JournalFile| -> Vec<i64> {
            let calls = LoggedCalls::read(file).unwrap();
            let column = |batch: &RecordBatch| batch.column(0).as_primitive::<Int64Type>().clone();
            calls
                .dispatches
                .iter()
                .flat_map(|batch| column(batch).values().to_vec())
                .collect()
        };
        files.iter().map(read).collect()
    }

    #[test]
    fn what_is_noted_is_read_again_but_for_what_was_cut_off() {
        let directory = tempfile::tempdir().unwrap();
        let log = DispatchLog::new(directory.path(), Arc::new(Writer::unlocked(1)), 0);
        assert!(tasks(directory.path()).is_empty());
        log.record([call(7), call(-8)].into_iter()).unwrap();
        log.record([call(9)].into_iter()).unwrap();
        assert_eq!(tasks(directory.path()), [[7, -8, 9]]);

        let path = directory.path().join("0000000001-run-p00-00000.dispatches");
        let file = OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(3 * RECORD as u64 - 1).unwrap();
        assert_eq!(tasks(directory.path()), [[7, -8]]);
    }

    #[test]
    fn a_log_is_begun_anew_only_when_it_has_doubled() {
        let directory = tempfile::tempdir().unwrap();
        let log = DispatchLog::new(directory.path(), Arc::new(Writer::unlocked(1)), 0);
        let calls = |count: u64| (0..count).map(|task| call(task as i64));
        log.record(calls(LONG - 1)).unwrap();
        assert!(!log.is_long());
        log.record(calls(1)).unwrap();
        assert!(log.is_long());
        // All of them are in flight, and some more.
        let in_flight = calls(LONG + 10).map(|call| (call, Vec::new()));
        log.rotate(in_flight).unwrap();
        assert!(!log.is_long());
        log.record(calls(LONG + 9)).unwrap();
        assert!(!log.is_long());
        log.record(calls(1)).unwrap();
        assert!(log.is_long());
    }

    #[test]
    fn a_rotated_log_keeps_one_file_before() {
        let directory = tempfile::tempdir().unwrap();
        let log = DispatchLog::new(directory.path(), Arc::new(Writer::unlocked(1)), 0);
        log.record([call(0)].into_iter()).unwrap();
        log.rotate([(call(0), Vec::new())].into_iter()).unwrap();
        assert_eq!(tasks(directory.path()), [[0], [0]]);
        log.record([call(1)].into_iter()).unwrap();
        log.rotate([(call(1), Vec::new())].into_iter()).unwrap();
        assert_eq!(tasks(directory.path()), [vec![0, 1], vec![1]]);
        log.close().unwrap();
        assert!(tasks(directory.path()).is_empty());
    }
}
