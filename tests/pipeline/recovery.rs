//! What a process that was killed left in its journal is landed by the next, whole batch by whole
//! batch, and once.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arrow::array::RecordBatch;
use datafusion::prelude::SessionContext;
use rollstream::Sweep;
use rollstream::call::RolloutKey;
use rollstream::config::Settings;
use rollstream::outcome::{Answer, Outcome, OutcomeBatchBuilder, Times, Verdict, Waited};
use rollstream::retry::{Failure, FailureClass};
use rollstream::session::RunTables;
use rollstream::sim::{AgentConfig, Sim, SimConfig};
use rollstream::store::{
    DispatchLog, DispatchRecord, JournalFile, RunRecord, RunStore, SegmentWriter, Writer,
};

use super::landed;
use super::workspace::{Workspace, counts, quick, sweep, tasks};

/// A segment of the first writer of a run.
const SEGMENT: &str = "0000000001-run-p00-00900";

/// Outcomes of the first rollouts of `tasks`; those of odd tasks are failures.
fn outcomes(tasks: std::ops::Range<i64>) -> RecordBatch {
    let mut builder = OutcomeBatchBuilder::new();
    for task_index in tasks {
        let text = format!(r#"{{"reward": 1, "left behind by": {task_index}}}"#);
        let verdict = match task_index % 2 {
            0 => Verdict::Ok(Answer::parse(text).unwrap()),
            _ => Verdict::Failed {
                failure: Failure::new(FailureClass::Infra, "HTTP 500"),
                terminal: false,
            },
        };
        let key = RolloutKey::new(task_index, 0, 1);
        let outcome = Outcome {
            http_status: Some(200),
            times: Times {
                server: Some(Duration::from_millis(5)),
                ..Times::default()
            },
            ..Outcome::new(
                key,
                "sim",
                SystemTime::UNIX_EPOCH + Duration::from_secs(1 + task_index.unsigned_abs()),
                verdict,
            )
        };
        builder.append(outcome).unwrap();
    }
    builder.finish().unwrap()
}

/// Leaves a segment of the first tasks, four in a batch; gives its path.
async fn leave(run: &RunStore, name: &str, num_tasks: i64) -> PathBuf {
    let mut writer = SegmentWriter::create(run.journal_dir(), name.parse().unwrap()).unwrap();
    for first in (0..num_tasks).step_by(4) {
        writer.append(&outcomes(first..first + 4)).unwrap();
    }
    writer.seal().path().to_owned()
}

/// Leaves a segment with tasks 0 to 3 in a whole batch and tasks 4 to 7 in one that is cut off.
async fn leave_torn_segment(run: &RunStore) -> PathBuf {
    let path = leave(run, SEGMENT, 8).await;
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() - 40).unwrap();
    path
}

async fn store(place: &Workspace) -> RunStore {
    let run = RunStore::open(place.run().to_str().unwrap(), None).unwrap();
    RunRecord::identify(&run).await.unwrap()
}

async fn count(run: &RunStore, table: &str) -> usize {
    let session = SessionContext::new();
    let tables = RunTables::look(run).await.unwrap();
    tables.register(&session).await.unwrap();
    session.table(table).await.unwrap().count().await.unwrap()
}

/// Rollouts and attempts of a run of which all 12 rollouts failed once, beyond those attempts.
async fn added(run: &RunStore) -> (usize, usize) {
    let attempts = count(run, "attempts").await;
    (count(run, "rollouts").await, attempts - 12)
}

/// Resumes a run whose budgets are spent: nothing is asked.
async fn resume(settings: &Settings) -> Vec<String> {
    let settings = Settings {
        resume: true,
        ..settings.clone()
    };
    let sweep = Sweep::prepare(settings).await.unwrap();
    let progress = sweep.progress();
    sweep.collect().await.unwrap();
    progress.take_notices()
}

/// A run of 12 tasks in which nothing came of anything, and its settings.
async fn failed_run(place: &Workspace) -> (Settings, Sim) {
    let fault_at = (0..12)
        .map(|task| format!("{task}=error_500").parse().unwrap())
        .collect();
    let sim = Sim::start(SimConfig {
        fault_at,
        ..quick(&[("sim", AgentConfig::default())])
    })
    .await
    .unwrap();
    let settings = place.settings(&tasks(12, &["sim"]), 1, &sim);
    assert_eq!(sweep(settings.clone()).await.rollouts.failed, 12);
    (settings, sim)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resume_lands_the_whole_batches_of_a_torn_segment() {
    let place = Workspace::new();
    let (settings, _sim) = failed_run(&place).await;
    let run = store(&place).await;
    leave_torn_segment(&run).await;
    assert_eq!(added(&run).await, (2, 4));

    let sim = Sim::start(quick(&[("sim", AgentConfig::default())]))
        .await
        .unwrap();
    let settings = Settings {
        resume: true,
        head_server: Some(sim.head_url().parse().unwrap()),
        infra_budget: 3,
        ..settings
    };
    let prepared = Sweep::prepare(settings).await.unwrap();
    assert_eq!(prepared.plan().await.unwrap().num_pending(), 10);
    let report = prepared.collect().await.unwrap();
    // Tasks 0 and 2 were answered in the whole batch; all others are asked again.
    assert_eq!(counts(&sim, "sim").requests, 10);
    assert_eq!(
        (
            report.rollouts.done,
            report.rollouts.failed,
            report.rollouts.pending
        ),
        (12, 0, 0)
    );
    assert_eq!(landed::done(&place.run()), landed::all(12, 1));
    assert_eq!(landed::attempts(&place.run()).len(), 12 + 4 + 10);
    let rollouts = landed::rollouts(&place.run());
    let left: Vec<i64> = rollouts
        .iter()
        .filter(|row| row.result.contains("left behind by"))
        .map(|row| row.task)
        .collect();
    assert_eq!(left, [0, 2]);
    assert!(!place.run().join("journal").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_that_is_landed_twice_is_landed_once() {
    let place = Workspace::new();
    let (settings, _sim) = failed_run(&place).await;
    let run = store(&place).await;
    let path = leave_torn_segment(&run).await;
    let segment = fs::read(&path).unwrap();
    let rows = || {
        (
            landed::done(&place.run()),
            landed::attempts(&place.run()).len(),
        )
    };
    let put_back = || {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &segment).unwrap();
    };
    let attempts_part = || landed::parts(&place.run(), "attempts").pop().unwrap();

    assert!(resume(&settings).await.is_empty());
    let once = (vec![(0, 0), (2, 0)], 12 + 4);
    assert_eq!((rows(), path.exists()), (once.clone(), false));

    // As if the process had ended between publishing the parts and removing the segment.
    put_back();
    assert_eq!(added(&run).await, (2, 4));
    let notices = resume(&settings).await;
    assert!(
        notices[0].contains("4 of its attempts are on record already"),
        "{notices:?}"
    );
    assert_eq!(rows(), once);

    // As if it had ended between the two parts.
    put_back();
    fs::remove_file(attempts_part()).unwrap();
    assert_eq!(added(&run).await, (2, 4));
    resume(&settings).await;
    assert_eq!(rows(), once);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_without_attempts_get_them_from_the_answers() {
    let place = Workspace::new();
    let (settings, _sim) = failed_run(&place).await;
    let run = store(&place).await;
    leave_torn_segment(&run).await;
    resume(&settings).await;
    let before = landed::rollouts(&place.run());
    // As if the machine had been lost between the two parts.
    fs::remove_file(landed::parts(&place.run(), "attempts").pop().unwrap()).unwrap();
    let answers = landed::parts(&place.run(), "rollouts").pop().unwrap();
    let bytes = fs::read(&answers).unwrap();
    assert_eq!(added(&run).await, (2, 0));
    for _ in 0..2 {
        resume(&settings).await;
        assert_eq!(added(&run).await, (2, 2));
    }
    assert_eq!(fs::read(&answers).unwrap(), bytes);
    let attempts = landed::attempts(&place.run());
    for rollout in before {
        let own = attempts
            .iter()
            .filter(|row| (row.task, row.attempt) == (rollout.task, rollout.attempt));
        let outcomes: Vec<&str> = own.map(|row| &*row.outcome).collect();
        assert!(outcomes.contains(&"ok"), "{outcomes:?}");
    }
}

/// Another machine landed an earlier copy of what this one wrote, and asked the rest again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_copy_lacked_is_landed_by_who_has_it() {
    let place = Workspace::new();
    let (settings, _sim) = failed_run(&place).await;
    let run = store(&place).await;
    leave_torn_segment(&run).await;
    resume(&settings).await;
    assert_eq!(added(&run).await, (2, 4));

    leave(&run, SEGMENT, 8).await;
    assert_eq!(added(&run).await, (4, 8));
    resume(&settings).await;
    assert_eq!(added(&run).await, (4, 8));
    let done = landed::done(&place.run());
    assert_eq!(done, [(0, 0), (2, 0), (4, 0), (6, 0)]);
    let mut numbers: Vec<_> = landed::attempts(&place.run())
        .iter()
        .map(|row| (row.task, row.rollout, row.attempt))
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 12 + 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_to_a_rollout_that_has_one_is_superseded() {
    let place = Workspace::new();
    let (settings, _sim) = failed_run(&place).await;
    let run = store(&place).await;
    leave(&run, "0000000009-run-p00-00000", 4).await;
    resume(&settings).await;
    // Of a writer that was thought dead: the same rollouts, at other times.
    let mut writer = SegmentWriter::create(
        run.journal_dir(),
        "0000000001-run-p00-00901".parse().unwrap(),
    )
    .unwrap();
    writer.append(&later(&outcomes(0..8))).unwrap();
    writer.seal();
    let expected = (4, 4 + 8);
    assert_eq!(added(&run).await, expected);
    let notices = resume(&settings).await;
    assert!(
        notices[0].contains("2 of its answers are superseded"),
        "{notices:?}"
    );
    assert_eq!(added(&run).await, expected);
    let superseded = landed::attempts(&place.run());
    let superseded: Vec<i64> = superseded
        .iter()
        .filter(|row| row.outcome == "superseded")
        .map(|row| row.task)
        .collect();
    assert_eq!(superseded, [0, 2]);
}

/// The same outcomes a second later.
fn later(outcomes: &RecordBatch) -> RecordBatch {
    use arrow::array::{ArrayRef, AsArray};
    use arrow::datatypes::TimestampMicrosecondType;
    let schema = outcomes.schema();
    let columns = schema.fields().iter().zip(outcomes.columns());
    let columns = columns.map(|(field, column)| -> ArrayRef {
        match field.name().as_str() {
            "dispatched_at" => {
                let times = column.as_primitive::<TimestampMicrosecondType>();
                let times = times.unary::<_, TimestampMicrosecondType>(|at| at + 1_000_000_000);
                Arc::new(times.with_data_type(column.data_type().clone()))
            }
            _ => Arc::clone(column),
        }
    });
    RecordBatch::try_new(Arc::clone(&schema), columns.collect()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_part_of_attempts_is_published_last() {
    let place = Workspace::new();
    let (settings, _sim) = failed_run(&place).await;
    let run = store(&place).await;
    leave(&run, SEGMENT, 8).await;
    // No file can be put there.
    let obstacle = place
        .run()
        .join("attempts/0000000002-run-p00-00000.parquet");
    fs::create_dir_all(obstacle.join("in the way")).unwrap();
    let again = Settings {
        resume: true,
        ..settings.clone()
    };
    let failed = Sweep::prepare(again).await.unwrap().collect().await;
    assert!(failed.is_err());
    assert_eq!(landed::rollouts(&place.run()).len(), 4);
    assert_eq!(landed::segments(run.journal_dir()).len(), 1);
    fs::remove_dir_all(&obstacle).unwrap();
    resume(&settings).await;
    assert_eq!(added(&run).await, (4, 8));
    assert!(landed::segments(run.journal_dir()).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_batch_is_told_and_costs_no_other() {
    let place = Workspace::new();
    let (settings, _sim) = failed_run(&place).await;
    let run = store(&place).await;
    let path = leave(&run, SEGMENT, 12).await;
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 100].fill(0);
    fs::write(&path, &bytes).unwrap();
    assert_eq!(added(&run).await, (4, 8));
    let notices = resume(&settings).await;
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(
        notices[0].contains(name)
            && notices[0].contains("at offset")
            && notices[0].contains("damaged"),
        "{notices:?}"
    );
    assert_eq!(added(&run).await, (4, 8));
    let kept = path.with_file_name("damaged").join(name);
    assert_eq!(fs::read(kept).unwrap(), bytes);
}

#[test]
fn a_segment_that_has_gone_is_removed_without_complaint() {
    let place = Workspace::new();
    let directory = place.run().join("journal");
    let writer = SegmentWriter::create(&directory, SEGMENT.parse().unwrap()).unwrap();
    writer.seal();
    let segment = JournalFile::segments(&directory).unwrap().remove(0);
    segment.remove().unwrap();
    segment.remove().unwrap();
    assert!(landed::segments(&directory).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_with_nothing_whole_in_it_is_no_hindrance() {
    let place = Workspace::new();
    let (settings, _sim) = failed_run(&place).await;
    let run = store(&place).await;
    for (name, length) in [
        ("0000000001-run-p00-00900", 0),
        ("0000000001-run-p00-00901", 7),
        ("0000000001-run-p00-00902", 500),
    ] {
        let path = leave(&run, name, 4).await;
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(length).unwrap();
    }
    assert_eq!(added(&run).await, (0, 0));
    assert!(resume(&settings).await.is_empty());
    assert_eq!(added(&run).await, (0, 0));
    assert!(landed::segments(run.journal_dir()).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_whose_end_nobody_saw_are_noted_once() {
    let place = Workspace::new();
    let (settings, _sim) = failed_run(&place).await;
    let run = store(&place).await;
    let calls = |tasks: std::ops::Range<i64>| {
        tasks.map(|task_index| DispatchRecord {
            key: RolloutKey::new(task_index, 0, 9),
            dispatched_at_us: 1_000_000 * (1 + task_index),
            waited: Waited::default(),
        })
    };
    // What came of tasks 0 to 3 is known.
    leave(&run, SEGMENT, 4).await;
    let log = DispatchLog::new(run.journal_dir(), Arc::new(Writer::unlocked(1)), 7);
    log.record(calls(0..12)).unwrap();
    for _ in 0..2 {
        resume(&settings).await;
        assert_eq!(added(&run).await, (2, 4 + 8));
    }
    let attempts = landed::attempts(&place.run());
    let interrupted = attempts.iter().filter(|row| row.outcome == "interrupted");
    assert_eq!(interrupted.count(), 8);
}
