//! What an earlier process left in the journal becomes parts: its answers, and a row for each of
//! its calls whose end nobody saw.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Float64Type, Int64Type, TimestampMicrosecondType};
use datafusion::common::runtime::SpawnedTask;
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;

use crate::config::Shard;
use crate::error::Error;
use crate::expand;
use crate::failure::FailureClass;
use crate::land;
use crate::outcome::{Outcome, OutcomeBatchBuilder, Times, Verdict};
use crate::schema;
use crate::session::RunTables;
use crate::store::{
    DispatchLogFile, JournalSegment, JournalWriter, RunStore, StoreError, TurnRecord, checkpoint,
    part_name,
};
use crate::turn::{RolloutKey, Turn};

/// Rows of a batch of interrupted attempts.
const BATCH_ROWS: usize = 8192;

/// What the names of the journal's files say of the share of the run that they belong to.
pub(super) fn share(shard: Option<Shard>) -> String {
    match shard {
        Some(shard) => format!("s{}of{}", shard.index(), shard.count()),
        None => "run".to_owned(),
    }
}

/// A file of the journal is ours to recover unless its process may be alive: that of another shard
/// of as many. All others would keep our lock from being taken.
pub(super) fn is_ours(name: &str, shard: Option<Shard>) -> bool {
    let Some(shard) = shard else { return true };
    let of = name.split('-').nth(1).unwrap_or_default();
    of == share(Some(shard)) || !of.ends_with(&format!("of{}", shard.count()))
}

/// Lands what earlier processes left in the journal of `run`, on this machine or, as copies, on the
/// store; gives whether there was anything. `session` needs no tables.
pub(super) async fn recover(
    run: &RunStore,
    shard: Option<Shard>,
    session: &SessionContext,
) -> Result<bool, Error> {
    let is_ours = |name: &str| is_ours(name, shard);
    let _alone = alone(run, shard).await?;
    let left = JournalSegment::list(run.journal_dir())?;
    let mut any = left.iter().any(|segment| is_ours(segment.name()));
    land::recover(run, is_ours).await?;
    let mut logs = Vec::new();
    // An attempt that was in flight when a log was begun anew has calls in both files.
    let mut turns = Vec::new();
    for log in DispatchLogFile::list(run.journal_dir())? {
        if is_ours(log.name()) {
            let (dispatches, of_log) = log.read()?;
            turns.extend(of_log);
            logs.push((log, dispatches));
            any = true;
        }
    }
    let mut turns = turns_of_attempts(turns);
    for (log, dispatches) in logs {
        record_interrupted(run, &log, dispatches, &mut turns, session).await?;
        log.remove()?;
    }
    forget_copies(run, shard).await?;
    Ok(any)
}

/// Shards that begin together recover one after the other what a process of the whole run left.
async fn alone(run: &RunStore, shard: Option<Shard>) -> Result<Option<File>, Error> {
    if shard.is_none() {
        return Ok(None);
    }
    let directory = run.journal_dir().to_owned();
    let locked = SpawnedTask::spawn_blocking(move || {
        let lock = || {
            std::fs::create_dir_all(&directory)?;
            let opened = File::open(&directory)?;
            opened.lock()?;
            Ok(opened)
        };
        lock().map_err(|source| StoreError::File {
            action: "lock",
            path: directory.clone(),
            source,
        })
    });
    let locked = locked.join().await.map_err(Error::defect)?;
    Ok(Some(locked?))
}

/// Deletes the copies of journal files that have become parts.
pub(super) async fn forget_copies(run: &RunStore, shard: Option<Shard>) -> Result<(), Error> {
    for copy in checkpoint::list(run).await? {
        if is_ours(&copy.name, shard) && !run.journal_dir().join(&copy.name).exists() {
            checkpoint::forget(run, &copy.name).await?;
        }
    }
    Ok(())
}

async fn record_interrupted(
    run: &RunStore,
    log: &DispatchLogFile,
    dispatches: Vec<RecordBatch>,
    turns: &mut HashMap<RolloutKey, Vec<Turn>>,
    session: &SessionContext,
) -> Result<(), Error> {
    let name = free_name(run, log).await?;
    let tables = RunTables::open(run)?;
    for table in [schema::TASKS, schema::ATTEMPTS] {
        let view = tables.table(session, table).await?.into_view();
        session.deregister_table(table)?;
        session.register_table(table, view)?;
    }
    let dispatches = MemTable::try_new(schema::dispatches(), vec![dispatches])?;
    session.deregister_table("dispatches")?;
    session.register_table("dispatches", Arc::new(dispatches))?;
    let mut rows = expand::unanswered(session).await?.execute_stream().await?;
    let mut journal: Option<JournalWriter> = None;
    let mut outcomes = OutcomeBatchBuilder::new();
    while let Some(batch) = rows.try_next().await? {
        for mut outcome in interrupted(&batch) {
            outcome.turns = turns.remove(&outcome.key()).unwrap_or_default();
            outcomes.append(outcome).map_err(Error::defect)?;
            if outcomes.len() == BATCH_ROWS {
                append(run, &name, &mut journal, &mut outcomes)?;
            }
        }
    }
    if !outcomes.is_empty() {
        append(run, &name, &mut journal, &mut outcomes)?;
    }
    if let Some(journal) = journal {
        journal.seal()?.sync()?;
        land::recover(run, |segment| segment == name).await?;
    }
    Ok(())
}

/// A name for a segment of what `log` says. Its rows are those that `attempts` lacks, so that there may be parts of it
/// already: of a recovery that was killed in the middle of it, or that knew an earlier copy of the log. What bears
/// their name would be taken for them, and removed.
async fn free_name(run: &RunStore, log: &DispatchLogFile) -> Result<String, Error> {
    let mut number = 0;
    loop {
        let name = format!("{}-interrupted-{number:05}", log.name());
        if !run.exists(&part_name(schema::ATTEMPTS, &name)).await? {
            return Ok(name);
        }
        number += 1;
    }
}

fn append(
    run: &RunStore,
    name: &str,
    journal: &mut Option<JournalWriter>,
    outcomes: &mut OutcomeBatchBuilder,
) -> Result<(), Error> {
    let batch = outcomes.finish().map_err(Error::defect)?;
    let writer = match journal {
        Some(writer) => writer,
        None => {
            let directory = run.journal_dir();
            journal.insert(JournalWriter::create(directory, name, &schema::outcomes())?)
        }
    };
    writer.append(&batch).map_err(Error::from)
}

/// The calls within each attempt, in their order; each once, though a log that was begun anew has those in
/// flight a second time.
fn turns_of_attempts(records: Vec<TurnRecord>) -> HashMap<RolloutKey, Vec<Turn>> {
    let mut attempts: HashMap<RolloutKey, Vec<Turn>> = HashMap::new();
    for record in records {
        attempts.entry(record.key).or_default().push(Turn {
            start: record.start,
            name: None,
            address: None,
            end: None,
        });
    }
    for turns in attempts.values_mut() {
        turns.sort_by_key(|turn| turn.start.call);
        turns.dedup_by_key(|turn| turn.start.call);
    }
    attempts
}

fn interrupted(rows: &RecordBatch) -> Vec<Outcome> {
    let column = |name: &str| rows.column_by_name(name);
    let integers = |name: &str| {
        let column = column(name).and_then(|column| column.as_primitive_opt::<Int64Type>());
        column
            .map(|column| column.values().to_vec())
            .unwrap_or_default()
    };
    let milliseconds = |name: &str| {
        let column = column(name).and_then(|column| column.as_primitive_opt::<Float64Type>());
        column
            .map(|column| column.values().to_vec())
            .unwrap_or_default()
    };
    let (tasks, rollouts) = (
        integers(schema::TASK_INDEX),
        integers(schema::ROLLOUT_INDEX),
    );
    let attempts = integers(schema::ATTEMPT);
    let (permits, rates) = (
        milliseconds(schema::PERMIT_WAIT_MS),
        milliseconds(schema::RATE_WAIT_MS),
    );
    let agents = column(schema::AGENT_NAME).and_then(|column| column.as_string_view_opt());
    let at = column(schema::DISPATCHED_AT)
        .and_then(|column| column.as_primitive_opt::<TimestampMicrosecondType>());
    let wait = |waits: &[f64], row: usize| {
        let wait = waits.get(row).copied().unwrap_or_default() / 1e3;
        Duration::try_from_secs_f64(wait).unwrap_or_default()
    };
    let of = |values: &[i64], row: usize| values.get(row).copied().unwrap_or_default();
    (0..rows.num_rows())
        .map(|row| Outcome {
            task_index: of(&tasks, row),
            rollout_index: of(&rollouts, row),
            attempt: u32::try_from(of(&attempts, row)).unwrap_or(u32::MAX),
            agent_name: agents.map_or("", |agents| agents.value(row)).into(),
            http_status: None,
            response_headers: None,
            dispatched_at: UNIX_EPOCH
                + Duration::from_micros(at.map_or(0, |at| at.value(row)).unsigned_abs()),
            times: Times {
                permit_wait: wait(&permits, row),
                rate_wait: wait(&rates, row),
                ..Times::default()
            },
            concurrency_limit: None,
            turns: Vec::new(),
            verdict: Verdict::Failed {
                class: FailureClass::Interrupted.name(),
                error: "the collector ended before it saw what came of this".to_owned(),
                terminal: false,
                failure_terminal: false,
                answer: None,
            },
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::store::{DispatchLog, DispatchRecord};
    use crate::turn::{TurnJournal, TurnKind, TurnStart};

    #[test]
    fn an_attempt_has_the_calls_of_all_logs() {
        let directory = tempfile::tempdir().unwrap();
        let log = DispatchLog::new(directory.path(), "log");
        let dispatch = DispatchRecord {
            task_index: 1,
            rollout_index: 2,
            attempt: 3,
            dispatched_at_us: 4,
            permit_wait: Duration::ZERO,
            rate_wait: Duration::ZERO,
        };
        let start = |call| TurnStart {
            call,
            turn: call,
            kind: TurnKind::Model,
            repetition: 0,
            started_at: SystemTime::UNIX_EPOCH,
        };
        let note = |call| log.note(&dispatch.key(), &start(call)).unwrap();
        log.record([dispatch].into_iter()).unwrap();
        note(0);
        let in_flight = std::iter::once_with(|| {
            // Sent while the log is begun anew.
            note(1);
            (dispatch, vec![start(0)])
        });
        log.rotate(in_flight).unwrap();
        note(2);
        let logs = DispatchLogFile::list(directory.path()).unwrap();
        assert_eq!(logs.len(), 2);
        let records = logs.iter().flat_map(|log| log.read().unwrap().1).collect();
        let attempts = turns_of_attempts(records);
        let calls = attempts[&dispatch.key()].iter();
        let calls: Vec<u32> = calls.map(|turn| turn.start.call).collect();
        assert_eq!(calls, [0, 1, 2]);
    }

    #[test]
    fn files_of_processes_that_may_live_are_left_alone() {
        let shard = |text: &str| Some(text.parse().unwrap());
        for (name, shard, expected) in [
            ("0173-run-00000", None, true),
            ("0173-s2of8-00000", None, true),
            ("0173-run-00000", shard("2/8"), true),
            ("0173-s2of8-00000", shard("2/8"), true),
            ("0173-s1of8-00000", shard("2/8"), false),
            ("0173-s2of4-00000", shard("2/8"), true),
        ] {
            assert_eq!(is_ours(name, shard), expected, "{name} {shard:?}");
        }
    }
}
