//! Recovers what earlier writers left behind, as parts: their answers, and a row for each attempt whose end nobody
//! saw. Damaged files are set aside, and rows that other files know of are written again.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use arrow::array::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;

use crate::call::{CallRow, RolloutKey};
use crate::error::Error;
use crate::expand;
use crate::outcome::{Outcome, OutcomeBatchBuilder, Verdict, Waited, outcomes_of};
use crate::progress::Progress;
use crate::retry::{Failure, FailureClass};
use crate::schema;
use crate::session::{self, JournalRows, RunTables, row};
use crate::store::segment::{Key, Row};
use crate::store::{
    CallRecord, JournalFile, LockScope, LoggedCalls, ParquetSink, RunStore, SegmentName,
    StoreError, Writer, checkpoint, in_directory, part_name,
};

/// Rows of a batch of interrupted attempts.
const BATCH_ROWS: usize = 8192;

/// Turns what earlier writers left into parts.
pub(super) struct Recovery<'a> {
    pub(super) run: &'a RunStore,
    pub(super) sink: &'a ParquetSink,
    pub(super) writer: &'a Writer,
    pub(super) progress: &'a Progress,
}

/// Whether `writer` may recover a file of the journal: the file's own writer is gone, because the lock of this
/// one keeps it out. Another shard of the same division may be alive.
pub(super) fn is_left(name: SegmentName, writer: &Writer) -> bool {
    name.epoch != writer.epoch() && name.scope.overlaps(writer.scope())
}

impl Recovery<'_> {
    /// Recovers everything, and returns whether there was anything.
    pub(super) async fn recover(&self) -> Result<bool, Error> {
        let _alone = alone(self.run, self.writer.scope()).await?;
        let mut tables = RunTables::look_for(self.run, self.writer.scope()).await?;
        let mut any = self.set_damaged_parts_aside(&tables).await?;
        if any {
            tables = RunTables::look_for(self.run, self.writer.scope()).await?;
        }
        for rows in tables.segments() {
            if is_left(rows.segment.name(), self.writer) {
                self.recover_segment(rows).await?;
                any = true;
            }
        }
        for name in tables.committed().partial() {
            if is_left(name, self.writer) {
                any |= self.complete(name).await?;
            }
        }
        any |= self.recover_calls().await?;
        forget_copies(self.run, self.writer).await?;
        Ok(any)
    }

    async fn set_damaged_parts_aside(&self, tables: &RunTables) -> Result<bool, Error> {
        let mut any = false;
        for part in tables.damaged() {
            let name = SegmentName::of_part(part.as_ref());
            if name.is_none_or(|name| name.scope.overlaps(self.writer.scope())) {
                let to = self.run.set_aside(part).await?;
                self.progress.notice(format!(
                    "{} is damaged and can't be read: it is kept as {}. Its rollouts are pending again",
                    self.run.display_path(part),
                    self.run.display(&to)
                ));
                any = true;
            }
        }
        Ok(any)
    }

    async fn recover_segment(&self, rows: &JournalRows) -> Result<(), Error> {
        let JournalRows { segment, decisions } = rows;
        let name = segment.name();
        if self.sink.is_committed(name).await? {
            return Ok(segment.file().remove()?);
        }
        // Under a new name: the file may be a copy that is shorter than its original, and must not be taken for
        // the whole of it.
        let to = self.writer.recovered(name.scope);
        let (_, damages) = self.sink.commit(segment, to, decisions).await?;
        let (repeated, superseded) = (decisions.num_repeated(), decisions.num_superseded());
        if repeated + superseded > 0 {
            self.progress.notice(format!(
                "journal segment {name} is older than another writer's work: {repeated} of its attempts are on record \
                 already, and {superseded} of its answers are superseded by others"
            ));
        }
        if damages.is_empty() {
            return Ok(segment.file().remove()?);
        }
        let kept = segment.file().set_aside()?;
        let places: Vec<String> = damages
            .iter()
            .map(|damage| format!("{} bytes at offset {}", damage.length, damage.offset))
            .collect();
        self.progress.notice(format!(
            "journal '{}' is damaged ({}): all else in it has landed, the file is kept as '{}', and what was lost is \
             pending again",
            segment.file().path().display(),
            places.join(", "),
            kept.display()
        ));
        Ok(())
    }

    /// Writes the attempts of answers that were published without them, if the segment is not here: its writer died
    /// in between, and only the answers tell of the attempts. The segment stays partial, since the
    /// machine that has it may come back with more.
    async fn complete(&self, name: SegmentName) -> Result<bool, Error> {
        let answers = part_name(schema::ROLLOUTS, name);
        if self.sink.is_committed(name).await? || !self.run.exists(&answers).await? {
            return Ok(false);
        }
        let session = SessionContext::new_with_config(session::config());
        let rows = session::part(&session, self.run, &answers, &schema::rollouts())?;
        let tables = RunTables::look(self.run).await?;
        let to = self.writer.recovered(name.scope);
        let mut transaction = self.sink.begin(to).await?;
        let mut any = false;
        let mut batches = rows.execute_stream().await?;
        while let Some(batch) = batches.try_next().await? {
            let outcomes = outcomes_of(&batch).map_err(Error::defect)?;
            let rows = Row::of(&outcomes).map_err(Error::defect)?;
            let keys: HashSet<Key> = rows.iter().map(|row| row.key).collect();
            // Looks at all epochs: if the segment was to replace small parts, its attempts are still in those.
            let decisions = tables.ledger(&keys, 0).await?.decide(rows);
            any |= transaction.write(&outcomes, &decisions).await? > 0;
        }
        transaction.commit().await?;
        Ok(any)
    }

    /// Writes a failed attempt for each dispatch in the logs that has no outcome, with its calls.
    async fn recover_calls(&self) -> Result<bool, Error> {
        let mut logs = Vec::new();
        // An attempt that was in flight when a log was rotated has calls in both files.
        let mut calls = Vec::new();
        for log in JournalFile::dispatch_logs(self.run.journal_dir())? {
            if is_left(log.name(), self.writer) {
                let mut logged = LoggedCalls::read(&log)?;
                calls.append(&mut logged.calls);
                logs.push((log, logged));
            }
        }
        let any = !logs.is_empty();
        let mut calls = calls_of_attempts(calls);
        for (log, logged) in logs {
            self.record_interrupted(log.name(), logged.dispatches, &mut calls)
                .await?;
            if logged.num_damaged == 0 {
                log.remove()?;
                continue;
            }
            let kept = log.set_aside()?;
            self.progress.notice(format!(
                "{} records of the dispatch log '{}' are damaged; all other dispatches are known. The file is kept \
                 as '{}'",
                logged.num_damaged,
                log.path().display(),
                kept.display()
            ));
        }
        Ok(any)
    }

    async fn record_interrupted(
        &self,
        log: SegmentName,
        dispatches: Vec<RecordBatch>,
        calls: &mut HashMap<RolloutKey, Vec<CallRow>>,
    ) -> Result<(), Error> {
        let session = SessionContext::new_with_config(session::config());
        let tables = RunTables::look(self.run).await?;
        for table in [schema::TASKS, schema::ATTEMPTS] {
            let view = tables.table(&session, table).await?.into_view();
            session.register_table(table, view)?;
        }
        let dispatches = MemTable::try_new(schema::dispatches(), vec![dispatches])?;
        session.register_table("dispatches", Arc::new(dispatches))?;
        let mut rows = expand::unanswered(&session).await?.execute_stream().await?;
        let mut outcomes = OutcomeBatchBuilder::new();
        let mut transaction = None;
        while let Some(batch) = rows.try_next().await? {
            let cut_off = Interrupted::rows(&batch)?.into_iter();
            let mut cut_off: Vec<Outcome> = cut_off.map(Interrupted::outcome).collect();
            for outcome in &mut cut_off {
                outcome.calls = calls.remove(&outcome.key).unwrap_or_default();
            }
            let keys = cut_off
                .iter()
                .map(|of| (of.key.task_index, of.key.rollout_index));
            // Later writers may have used these attempt numbers again.
            let mut ledger = tables.ledger(&keys.collect(), log.epoch + 1).await?;
            let mut rest = cut_off.into_iter().peekable();
            while rest.peek().is_some() {
                for outcome in rest.by_ref().take(BATCH_ROWS) {
                    outcomes.append(outcome).map_err(Error::defect)?;
                }
                let batch = outcomes.finish().map_err(Error::defect)?;
                let decisions = ledger.decide(Row::of(&batch).map_err(Error::defect)?);
                let transaction = match &mut transaction {
                    Some(begun) => begun,
                    none => {
                        let to = self.writer.recovered(log.scope);
                        none.insert(self.sink.begin(to).await?)
                    }
                };
                transaction.write(&batch, &decisions).await?;
            }
        }
        if let Some(transaction) = transaction {
            transaction.commit().await?;
        }
        Ok(())
    }
}

/// Locks the journal's directory, so that shards recover one at a time what a process of the whole run left.
async fn alone(run: &RunStore, scope: LockScope) -> Result<Option<File>, Error> {
    if scope == LockScope::Run {
        return Ok(None);
    }
    let directory = run.journal_dir().to_owned();
    let locked = SpawnedTask::spawn_blocking(move || {
        let locked = in_directory(&directory, || {
            let opened = File::open(&directory)?;
            opened.lock()?;
            // A directory that was removed meanwhile keeps nobody away from the one in its place.
            if opened.metadata()?.ino() != std::fs::metadata(&directory)?.ino() {
                return Err(io::ErrorKind::NotFound.into());
            }
            Ok(opened)
        });
        locked.map_err(|source| StoreError::File {
            action: "lock",
            path: directory.clone(),
            source,
        })
    });
    let locked = locked.join().await.map_err(Error::defect)?;
    Ok(Some(locked?))
}

/// Deletes the copies of journal files that have become parts.
pub(super) async fn forget_copies(run: &RunStore, writer: &Writer) -> Result<(), Error> {
    for copy in checkpoint::list(run).await? {
        if copy.name.scope.overlaps(writer.scope()) && !run.journal_dir().join(&copy.file).exists()
        {
            checkpoint::forget(run, &copy.file).await?;
        }
    }
    Ok(())
}

/// Returns the calls of each attempt, in order. Each is there once, though a rotated log repeats those in
/// flight.
fn calls_of_attempts(records: Vec<CallRecord>) -> HashMap<RolloutKey, Vec<CallRow>> {
    let mut attempts: HashMap<RolloutKey, Vec<CallRow>> = HashMap::new();
    for record in records {
        attempts.entry(record.key).or_default().push(CallRow {
            start: record.start,
            name: None,
            address: None,
            end: None,
        });
    }
    for calls in attempts.values_mut() {
        calls.sort_by_key(|call| call.start.call);
        calls.dedup_by_key(|call| call.start.call);
    }
    attempts
}

row! {
    /// An attempt that was dispatched and has no outcome.
    struct Interrupted {
        task_index: i64,
        rollout_index: i64,
        attempt: i64,
        agent_name: String,
        /// Microseconds since 1970.
        dispatched_at: i64,
        permit_wait_ms: Option<f64>,
        rate_wait_ms: Option<f64>,
    }
}

impl Interrupted {
    fn outcome(self) -> Outcome {
        let attempt = u32::try_from(self.attempt).unwrap_or(u32::MAX);
        let key = RolloutKey::new(self.task_index, self.rollout_index, attempt);
        let sent_at = UNIX_EPOCH + Duration::from_micros(self.dispatched_at.unsigned_abs());
        let why = "the process ended before this attempt did";
        let verdict = Verdict::Failed {
            failure: Failure::new(FailureClass::Interrupted, why),
            terminal: false,
        };
        let mut outcome = Outcome::new(key, self.agent_name.as_str(), sent_at, verdict);
        let wait = |milliseconds: Option<f64>| {
            let seconds = milliseconds.unwrap_or_default() / 1e3;
            Duration::try_from_secs_f64(seconds).unwrap_or_default()
        };
        outcome.times.waited = Waited {
            permit: wait(self.permit_wait_ms),
            rate: wait(self.rate_wait_ms),
        };
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::call::{CallJournal, CallKind, CallStart};
    use crate::store::{DispatchLog, DispatchRecord};

    #[test]
    fn an_attempt_has_the_calls_of_all_logs() {
        let directory = tempfile::tempdir().unwrap();
        let log = DispatchLog::new(directory.path(), Arc::new(Writer::unlocked(1)), 0);
        let dispatch = DispatchRecord {
            key: RolloutKey::new(1, 2, 3),
            dispatched_at_us: 4,
            waited: Waited::default(),
        };
        let start = |call| CallStart {
            call,
            turn: call,
            kind: CallKind::Model,
            retry: 0,
            started_at: SystemTime::UNIX_EPOCH,
        };
        let note = |call| log.note(&dispatch.key, &start(call)).unwrap();
        log.record([dispatch].into_iter()).unwrap();
        note(0);
        let in_flight = std::iter::once_with(|| {
            // Sent while the log is begun anew.
            note(1);
            (dispatch, vec![start(0)])
        });
        log.rotate(in_flight).unwrap();
        note(2);
        let logs = JournalFile::dispatch_logs(directory.path()).unwrap();
        assert_eq!(logs.len(), 2);
        let records = logs
            .iter()
            .flat_map(|log| LoggedCalls::read(log).unwrap().calls)
            .collect();
        let attempts = calls_of_attempts(records);
        let calls = attempts[&dispatch.key].iter();
        let calls: Vec<u32> = calls.map(|call| call.start.call).collect();
        assert_eq!(calls, [0, 1, 2]);
    }
}
