//! The log of dispatches: [`DispatchLog`] notes each call before it is sent, so that a call whose
//! end nobody saw is known; [`DispatchLogFile`] reads what a process left behind.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arrow::array::{Float64Array, Int64Array, RecordBatch, TimestampMicrosecondArray};
use arrow::error::ArrowError;

use super::dispatch_record::{CallRecord, DispatchRecord, RECORD, Record};
use super::{SegmentName, StoreError, Writer};
use crate::call::{CallJournal, CallStart, RolloutKey};
use crate::schema;

/// Extension of a log.
pub const DISPATCHES: &str = "dispatches";

/// A log of fewer dispatches is not long.
const LONG: u64 = 1 << 20;

/// Rows of a batch that is read.
const BATCH_ROWS: usize = 64 * 1024;

/// The log of the calls of this process, in files of records of one size. What is noted survives
/// the end of the process; a power cut can lose the last of it.
#[derive(Debug)]
pub struct DispatchLog {
    directory: PathBuf,
    writer: Arc<Writer>,
    partition: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    file: Option<LogFile>,
    /// The file before, whose calls may not all be in the journal yet.
    previous: Option<PathBuf>,
    /// Records that the last rotation carried over to the file.
    carried: u64,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct LogFile {
    file: File,
    path: PathBuf,
    records: u64,
}

impl CallJournal for DispatchLog {
    fn note(&self, key: &RolloutKey, start: &CallStart) -> Result<(), String> {
        let mut record = Vec::with_capacity(RECORD);
        CallRecord {
            key: *key,
            start: *start,
        }
        .encode(&mut record);
        let written = self.write(&mut self.state(), &record);
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
            state: Mutex::default(),
        }
    }

    /// Notes calls that are about to be sent.
    ///
    /// # Errors
    /// The disk is full or broken; then none of them is noted, and none may be sent.
    pub fn record(&self, calls: impl Iterator<Item = DispatchRecord>) -> Result<(), StoreError> {
        let mut state = self.state();
        let mut buffer = std::mem::take(&mut state.buffer);
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
        if let Err(source) = log.file.write_all(records) {
            // Half a record would put all after it out of step.
            let _ = log.file.set_len(log.records * RECORD as u64);
            return Err(StoreError::File {
                action: "write",
                path: log.path.clone(),
                source,
            });
        }
        log.records += (records.len() / RECORD) as u64;
        Ok(())
    }

    fn create(&self) -> Result<LogFile, StoreError> {
        let name = self.writer.segment(self.partition);
        let name = format!("{name}.{DISPATCHES}");
        let path = self.directory.join(name);
        let create = || {
            fs::create_dir_all(&self.directory)?;
            OpenOptions::new().append(true).create_new(true).open(&path)
        };
        let file = create().map_err(|source| StoreError::File {
            action: "create",
            path: path.clone(),
            source,
        })?;
        Ok(LogFile {
            file,
            path,
            records: 0,
        })
    }

    /// It is worth beginning another file: this one is long, and at least twice what it began with. So
    /// however many calls are in flight, a dispatch is written again at most once.
    pub fn is_long(&self) -> bool {
        let state = self.state();
        let long = LONG.max(state.carried.saturating_mul(2));
        state.file.as_ref().is_some_and(|log| log.records >= long)
    }

    /// Begins another file with the calls that are in flight. The file before stays until the next
    /// time: by then, what came of its other calls is in the journal.
    ///
    /// # Errors
    /// The disk is full or broken.
    pub fn rotate(
        &self,
        in_flight: impl Iterator<Item = (DispatchRecord, Vec<CallStart>)>,
    ) -> Result<(), StoreError> {
        let mut records = Vec::new();
        // Who is asked for calls within attempts may be waiting to note one. Those that are noted from here on
        // are in the file before, if not in the new one.
        for (call, starts) in in_flight {
            call.encode(&mut records);
            let key = call.key;
            let starts = starts.into_iter();
            starts.for_each(|start| CallRecord { key, start }.encode(&mut records));
        }
        let mut state = self.state();
        let mut next = self.create()?;
        next.file
            .write_all(&records)
            .map_err(|source| StoreError::File {
                action: "write",
                path: next.path.clone(),
                source,
            })?;
        next.records = (records.len() / RECORD) as u64;
        state.carried = next.records;
        let current = state.file.replace(next);
        let previous = std::mem::replace(&mut state.previous, current.map(|log| log.path));
        drop(state);
        previous.map_or(Ok(()), |path| remove(&path))
    }

    /// Removes the log: what came of every call is in the journal or in parts.
    ///
    /// # Errors
    /// The system refused.
    pub fn close(&self) -> Result<(), StoreError> {
        let state = std::mem::take(&mut *self.state());
        let files = state.previous.into_iter();
        files
            .chain(state.file.map(|log| log.path))
            .try_for_each(|path| remove(&path))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(StoreError::File {
            action: "remove",
            path: path.to_owned(),
            source,
        }),
        _ => Ok(()),
    }
}

/// A file of a log that some process left.
#[derive(Debug, Clone)]
pub struct DispatchLogFile {
    path: PathBuf,
    name: SegmentName,
}

/// What a log holds.
#[derive(Debug, Default)]
pub struct LoggedCalls {
    /// The calls, as batches of [`schema::dispatches`].
    pub dispatches: Vec<RecordBatch>,
    /// The calls within them.
    pub calls: Vec<CallRecord>,
    /// Records that are not as they were written.
    pub num_damaged: u64,
}

impl DispatchLogFile {
    /// The files in a directory, oldest first; none where there is no directory.
    ///
    /// # Errors
    /// The directory can't be read.
    pub fn list(directory: &Path) -> Result<Vec<Self>, StoreError> {
        let files = super::segment::files(directory, DISPATCHES)?;
        Ok(files
            .into_iter()
            .map(|(name, path)| Self { path, name })
            .collect())
    }

    /// Its name, without the extension.
    pub fn name(&self) -> SegmentName {
        self.name
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its calls. A record that was cut off at the end is left out: that call was not sent.
    ///
    /// # Errors
    /// The file can't be read.
    pub fn read(&self) -> Result<LoggedCalls, StoreError> {
        let failed = |source| StoreError::File {
            action: "read",
            path: self.path.clone(),
            source,
        };
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(source) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(LoggedCalls::default());
            }
            Err(source) => return Err(failed(source)),
        };
        let mut file = BufReader::with_capacity(1 << 16, file);
        let mut logged = LoggedCalls::default();
        let mut records = Vec::new();
        let mut bytes = [0; RECORD];
        loop {
            let ended = match file.read_exact(&mut bytes) {
                Ok(()) => false,
                Err(source) if source.kind() == io::ErrorKind::UnexpectedEof => true,
                Err(source) => return Err(failed(source)),
            };
            if !ended {
                match Record::decode(&bytes) {
                    Some(Record::Dispatch(dispatch)) => records.push(dispatch),
                    Some(Record::Call(call)) => logged.calls.push(call),
                    None => logged.num_damaged += 1,
                }
            }
            if records.len() == BATCH_ROWS || (ended && !records.is_empty()) {
                let batch = batch(&records).map_err(|source| StoreError::Journal {
                    path: self.path.clone(),
                    source,
                })?;
                logged.dispatches.push(batch);
                records.clear();
            }
            if ended {
                return Ok(logged);
            }
        }
    }

    /// Moves the file to the directory of those that were found damaged; gives its path.
    ///
    /// # Errors
    /// The system refused.
    pub fn set_aside(&self) -> Result<PathBuf, StoreError> {
        super::segment::set_aside(&self.path)
    }

    /// Removes the file; no error if it has gone already.
    ///
    /// # Errors
    /// The system refused.
    pub fn remove(&self) -> Result<(), StoreError> {
        remove(&self.path)
    }
}

fn batch(records: &[DispatchRecord]) -> Result<RecordBatch, ArrowError> {
    let integers = |of: fn(&DispatchRecord) -> i64| -> Arc<Int64Array> {
        Arc::new(records.iter().map(of).collect())
    };
    let milliseconds = |of: fn(&DispatchRecord) -> Duration| -> Arc<Float64Array> {
        let values = records.iter().map(of);
        Arc::new(values.map(|wait| wait.as_secs_f64() * 1e3).collect())
    };
    let at = records.iter().map(|record| record.dispatched_at_us);
    let at = TimestampMicrosecondArray::from_iter_values(at).with_data_type(schema::timestamp());
    RecordBatch::try_new(
        schema::dispatches(),
        vec![
            integers(|record| record.key.task_index),
            integers(|record| record.key.rollout_index),
            integers(|record| record.key.attempt.into()),
            Arc::new(at),
            milliseconds(|record| record.waited.permit),
            milliseconds(|record| record.waited.rate),
        ],
    )
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;
    use arrow::datatypes::Int64Type;

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
        let files = DispatchLogFile::list(directory).unwrap();
        let read = |file: &DispatchLogFile| -> Vec<i64> {
            let calls = file.read().unwrap();
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
