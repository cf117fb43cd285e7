//! What a log of dispatches holds: a [`DispatchRecord`] for each attempt, a [`CallRecord`] for each call within one, and
//! [`LoggedCalls`], which reads what a process left behind. Records have one size, so that one costs a few bytes and half of
//! one is known: a serialization crate would give neither.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arrow::array::{Float64Array, Int64Array, RecordBatch, TimestampMicrosecondArray};
use arrow::error::ArrowError;
use bytes::{Buf, BufMut};

use super::StoreError;
use super::error::if_there;
use super::journal::JournalFile;
use crate::call::{CallKind, CallStart, RolloutKey};
use crate::outcome::Waited;
use crate::schema;

/// Extension of a log.
pub(super) const DISPATCHES: &str = "dispatches";

/// Rows of a batch that is read.
const BATCH_ROWS: usize = 64 * 1024;

/// Bytes of a record.
pub(super) const RECORD: usize = 44;

/// Bytes of a record before its checksum.
const FIELDS: usize = RECORD - 4;

/// A call that is about to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DispatchRecord {
    /// The attempt.
    pub key: RolloutKey,
    /// When it is sent, in microseconds since the epoch.
    pub dispatched_at_us: i64,
    /// How long it waited. Kept in microseconds, up to about an hour.
    pub waited: Waited,
}

/// A call within an attempt that is about to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallRecord {
    /// The attempt.
    pub key: RolloutKey,
    /// What is known of the call.
    pub start: CallStart,
}

/// A record of either kind. Both have the same size and end with a CRC-32: task, rollout and time; the attempt; what makes
/// it a call within the attempt (its kind from 1, so that 0 says that it is none); two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Record {
    Dispatch(DispatchRecord),
    Call(CallRecord),
}

/// Bits of a call's number, beside its kind.
const CALL_BITS: u32 = 24;

impl DispatchRecord {
    pub(super) fn encode(&self, buffer: &mut Vec<u8>) {
        let micros = |wait: Duration| u32::try_from(wait.as_micros()).unwrap_or(u32::MAX);
        let waits = [micros(self.waited.permit), micros(self.waited.rate)];
        encode(buffer, &self.key, self.dispatched_at_us, 0, waits);
    }
}

impl CallRecord {
    pub(super) fn encode(&self, buffer: &mut Vec<u8>) {
        let CallStart {
            call,
            turn,
            kind,
            retry,
            started_at,
        } = self.start;
        let at = started_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let at = i64::try_from(at.as_micros()).unwrap_or(i64::MAX);
        let number = CallKind::ALL.iter().position(|known| *known == kind);
        let number = number.map_or(0, |number| number as u32) + 1;
        let is_call = number << CALL_BITS | call.min((1 << CALL_BITS) - 1);
        encode(buffer, &self.key, at, is_call, [turn, retry]);
    }
}

fn encode(buffer: &mut Vec<u8>, key: &RolloutKey, at: i64, is_call: u32, numbers: [u32; 2]) {
    let begin = buffer.len();
    buffer.put_i64_le(key.task_index);
    buffer.put_i64_le(key.rollout_index);
    buffer.put_i64_le(at);
    buffer.put_u32_le(key.attempt);
    buffer.put_u32_le(is_call);
    numbers.iter().for_each(|number| buffer.put_u32_le(*number));
    let checksum = crc32fast::hash(buffer.get(begin..).unwrap_or_default());
    buffer.put_u32_le(checksum);
}

impl Record {
    /// None where the record is not as it was written.
    pub(super) fn decode(bytes: &[u8; RECORD]) -> Option<Self> {
        let (mut fields, checksum) = bytes.split_at_checked(FIELDS)?;
        if checksum != crc32fast::hash(fields).to_le_bytes() {
            return None;
        }
        let mut long = || fields.try_get_i64_le().ok();
        let (task_index, rollout_index, at) = (long()?, long()?, long()?);
        let mut short = || fields.try_get_u32_le().ok();
        let (attempt, is_call, first, second) = (short()?, short()?, short()?, short()?);
        let key = RolloutKey {
            task_index,
            rollout_index,
            attempt,
        };
        let kind = (is_call >> CALL_BITS).checked_sub(1);
        Some(
            match kind.and_then(|kind| CallKind::ALL.get(kind as usize)) {
                Some(kind) => Self::Call(CallRecord {
                    key,
                    start: CallStart {
                        call: is_call & ((1 << CALL_BITS) - 1),
                        turn: first,
                        kind: *kind,
                        retry: second,
                        started_at: time(at),
                    },
                }),
                None => Self::Dispatch(DispatchRecord {
                    key,
                    dispatched_at_us: at,
                    waited: Waited {
                        permit: Duration::from_micros(first.into()),
                        rate: Duration::from_micros(second.into()),
                    },
                }),
            },
        )
    }
}

fn time(micros: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(micros.max(0).unsigned_abs())
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

impl LoggedCalls {
    /// Reads a file of a log, which may have gone. A record that was cut off at the end is left out: that call was not sent.
    pub fn read(log: &JournalFile) -> Result<Self, StoreError> {
        let failed = StoreError::file("read", log.path());
        let Some(file) = if_there(File::open(log.path())).map_err(&failed)? else {
            return Ok(Self::default());
        };
        let mut file = BufReader::with_capacity(1 << 16, file);
        let mut logged = Self::default();
        let mut records = Vec::new();
        let mut bytes = [0; RECORD];
        loop {
            let ended = match file.read_exact(&mut bytes) {
                Ok(()) => false,
                Err(source) if source.kind() == ErrorKind::UnexpectedEof => true,
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
                    path: log.path().to_owned(),
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
    use super::*;

    #[test]
    fn records_of_both_kinds_survive_being_written_and_read() {
        let dispatch = DispatchRecord {
            key: RolloutKey::new(-5, 1, 2),
            dispatched_at_us: 3,
            waited: Waited {
                permit: Duration::from_micros(4),
                rate: Duration::from_micros(5),
            },
        };
        let mut bytes = Vec::new();
        dispatch.encode(&mut bytes);
        let bytes: [u8; RECORD] = bytes.try_into().unwrap();
        assert_eq!(Record::decode(&bytes), Some(Record::Dispatch(dispatch)));
        for at in 0..RECORD {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert_eq!(Record::decode(&damaged), None, "{at}");
        }
        for kind in CallKind::ALL {
            let call = CallRecord {
                key: dispatch.key,
                start: CallStart {
                    call: 7,
                    turn: 3,
                    kind,
                    retry: 2,
                    started_at: time(1_700_000_000_000_000),
                },
            };
            let mut bytes = Vec::new();
            call.encode(&mut bytes);
            let bytes: [u8; RECORD] = bytes.try_into().unwrap();
            assert_eq!(Record::decode(&bytes), Some(Record::Call(call)));
        }
    }
}
