//! What a process that was killed left in its journal is landed by the next, whole batch by whole
//! batch, and once.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arrow::array::RecordBatch;
use bytes::Bytes;
use datafusion::prelude::SessionContext;
use rollstream::Sweep;
use rollstream::answer::AnswerFields;
use rollstream::config::Settings;
use rollstream::land::recover;
use rollstream::outcome::{Answered, Outcome, OutcomeBatchBuilder, Times, Verdict};
use rollstream::schema;
use rollstream::session::RunTables;
use rollstream::sim::{AgentConfig, Sim, SimConfig};
use rollstream::store::{DispatchLog, DispatchRecord, JournalSegment, JournalWriter, RunStore};

use super::landed;
use super::workspace::{Workspace, counts, quick, sweep, tasks};

const SEGMENT: &str = "0000000000001-00000";

/// Outcomes of the first rollouts of `tasks`; those of odd tasks are failures.
fn outcomes(tasks: std::ops::Range<i64>) -> RecordBatch {
    let mut builder = OutcomeBatchBuilder::new();
    for task_index in tasks {
        let text = format!(r#"{{"reward": 1, "left behind by": {task_index}}}"#);
        let verdict = match task_index % 2 {
            0 => Verdict::Ok(Answered {
                fields: AnswerFields::parse(&text).unwrap(),
                result: Bytes::from(text),
            }),
            _ => Verdict::Failed {
                class: "infra",
                error: "HTTP 500".into(),
                terminal: false,
                failure_terminal: false,
                answer: None,
            },
        };
        let outcome = Outcome {
            task_index,
            rollout_index: 0,
            attempt: 0,
            agent_name: Arc::from("sim"),
            http_status: Some(200),
            dispatched_at: SystemTime::now(),
            response_headers: None,
            times: Times {
                server: Some(Duration::from_millis(5)),
                ..Times::default()
            },
            concurrency_limit: None,
            turns: Vec::new(),
            verdict,
        };
        builder.append(outcome).unwrap();
    }
    builder.finish().unwrap()
}

/// Leaves a segment with tasks 0 to 3 in a whole batch and tasks 4 to 7 in one that is cut off.
fn leave_torn_segment(journal: &Path) {
    let mut writer = JournalWriter::create(journal, SEGMENT, &schema::outcomes()).unwrap();
    writer.append(&outcomes(0..4)).unwrap();
    writer.append(&outcomes(4..8)).unwrap();
    drop(writer);
    let path = journal.join(SEGMENT).with_extension("arrows");
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() - 40).unwrap();
}

fn store(place: &Workspace) -> RunStore {
    RunStore::open(place.run().to_str().unwrap(), None).unwrap()
}

async fn count(run: &RunStore, table: &str) -> usize {
    let session = SessionContext::new();
    RunTables::open(run)
        .unwrap()
        .register(&session)
        .await
        .unwrap();
    session.table(table).await.unwrap().count().await.unwrap()
}

/// A run of 12 tasks in which nothing came of anything, and its settings.
async fn failed_run(place: &Workspace) -> Settings {
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
    settings
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resume_lands_the_whole_batches_of_a_torn_segment() {
    let place = Workspace::new();
    let settings = failed_run(&place).await;
    let journal = place.run().join("journal");
    leave_torn_segment(&journal);
    let run = store(&place);
    assert_eq!(
        (count(&run, "rollouts").await, count(&run, "attempts").await),
        (2, 12 + 4)
    );

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
    assert_eq!(prepared.plan().await.unwrap().num_owed(), 10);
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
    assert!(landed::segments(&journal).is_empty());
    for table in ["rollouts", "attempts"] {
        assert!(
            place
                .run()
                .join(table)
                .join(SEGMENT)
                .with_extension("parquet")
                .exists()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_that_is_compacted_twice_is_landed_once() {
    let place = Workspace::new();
    let run = store(&place);
    leave_torn_segment(run.journal_dir());
    let path = run.journal_dir().join(SEGMENT).with_extension("arrows");
    let segment = fs::read(&path).unwrap();
    let rows = || (landed::done(&place.run()), landed::attempts(&place.run()));

    let parts = recover(&run, |_| true).await.unwrap();
    assert_eq!(
        parts
            .iter()
            .map(|part| (&*part.table, part.num_rows))
            .collect::<Vec<_>>(),
        [("rollouts", 2), ("attempts", 4)]
    );
    assert!(!path.exists());
    let once = rows();
    assert_eq!((&once.0, once.1.len()), (&vec![(0, 0), (2, 0)], 4));

    // As if the process had ended between publishing the parts and removing the segment.
    fs::write(&path, &segment).unwrap();
    assert_eq!(
        (count(&run, "rollouts").await, count(&run, "attempts").await),
        (2, 4)
    );
    recover(&run, |_| true).await.unwrap();
    assert_eq!(rows(), once);
    assert_eq!(recover(&run, |_| true).await.unwrap().len(), 0);

    // As if it had ended between the two parts.
    fs::write(&path, &segment).unwrap();
    fs::remove_file(landed::parts(&place.run(), "attempts").pop().unwrap()).unwrap();
    assert_eq!(
        (count(&run, "rollouts").await, count(&run, "attempts").await),
        (2, 4)
    );
    recover(&run, |_| true).await.unwrap();
    assert_eq!(rows(), once);
}

/// Leaves a segment with tasks 0 to 7, which goes on where the torn one was cut off.
fn leave_whole_segment(journal: &Path) {
    let mut writer = JournalWriter::create(journal, SEGMENT, &schema::outcomes()).unwrap();
    writer.append(&outcomes(0..8)).unwrap();
    writer.seal().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_whose_attempts_have_landed_is_only_removed() {
    let place = Workspace::new();
    let run = store(&place);
    let counts = async || (count(&run, "rollouts").await, count(&run, "attempts").await);
    let part = |table| landed::parts(&place.run(), table).pop().unwrap();
    leave_torn_segment(run.journal_dir());
    recover(&run, |_| true).await.unwrap();

    // As if another machine had landed an earlier copy of what this one wrote.
    leave_whole_segment(run.journal_dir());
    assert_eq!(counts().await, (2, 4));
    assert_eq!(recover(&run, |_| true).await.unwrap().len(), 0);
    assert!(landed::segments(run.journal_dir()).is_empty());
    assert_eq!(counts().await, (2, 4));

    // As if that other machine had ended between the two parts.
    leave_whole_segment(run.journal_dir());
    fs::remove_file(part("attempts")).unwrap();
    assert_eq!(counts().await, (2, 8));
    assert_eq!(recover(&run, |_| true).await.unwrap().len(), 2);
    assert_eq!(counts().await, (4, 8));

    // As if nothing in that copy had been answered.
    leave_whole_segment(run.journal_dir());
    fs::remove_file(part("rollouts")).unwrap();
    assert_eq!(counts().await, (0, 8));
    assert_eq!(recover(&run, |_| true).await.unwrap().len(), 0);
    assert_eq!(counts().await, (0, 8));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_part_of_attempts_is_published_last() {
    let place = Workspace::new();
    let run = store(&place);
    leave_whole_segment(run.journal_dir());
    // No file can be put there.
    let obstacle = place.run().join(format!("attempts/{SEGMENT}.parquet"));
    fs::create_dir_all(obstacle.join("in the way")).unwrap();
    recover(&run, |_| true).await.unwrap_err();
    assert_eq!(landed::rollouts(&place.run()).len(), 4);
    assert_eq!(landed::segments(run.journal_dir()).len(), 1);
    fs::remove_dir_all(&obstacle).unwrap();
    assert_eq!(recover(&run, |_| true).await.unwrap().len(), 2);
    assert_eq!(landed::attempts(&place.run()).len(), 8);
    assert!(landed::segments(run.journal_dir()).is_empty());
}

#[test]
fn a_segment_that_has_gone_is_removed_without_complaint() {
    let place = Workspace::new();
    leave_whole_segment(&place.run());
    let segment = JournalSegment::list(&place.run()).unwrap().remove(0);
    segment.remove().unwrap();
    segment.remove().unwrap();
    assert!(landed::segments(&place.run()).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_with_nothing_whole_in_it_is_no_hindrance() {
    let place = Workspace::new();
    let run = store(&place);
    for (name, length) in [
        ("0000000000001-00000", 0),
        ("0000000000001-00001", 7),
        ("0000000000001-00002", 500),
    ] {
        let mut writer =
            JournalWriter::create(run.journal_dir(), name, &schema::outcomes()).unwrap();
        writer.append(&outcomes(0..4)).unwrap();
        drop(writer);
        let path = run.journal_dir().join(name).with_extension("arrows");
        fs::OpenOptions::new()
            .write(true)
            .open(path)
            .unwrap()
            .set_len(length)
            .unwrap();
    }
    assert_eq!(
        (count(&run, "rollouts").await, count(&run, "attempts").await),
        (0, 0)
    );
    assert_eq!(recover(&run, |_| true).await.unwrap().len(), 0);
    assert!(landed::segments(run.journal_dir()).is_empty());
}

/// Attempts whose end nobody saw.
fn interrupted(tasks: std::ops::Range<i64>) -> RecordBatch {
    let mut builder = OutcomeBatchBuilder::new();
    for task_index in tasks {
        let outcome = Outcome {
            task_index,
            rollout_index: 0,
            attempt: 9,
            agent_name: Arc::from("sim"),
            http_status: None,
            dispatched_at: SystemTime::now(),
            response_headers: None,
            times: Times::default(),
            concurrency_limit: None,
            turns: Vec::new(),
            verdict: Verdict::Failed {
                class: "interrupted",
                error: "nobody saw its end".into(),
                terminal: false,
                failure_terminal: false,
                answer: None,
            },
        };
        builder.append(outcome).unwrap();
    }
    builder.finish().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_recovery_that_was_killed_noted_in_part_is_noted_whole_and_once() {
    let place = Workspace::new();
    let settings = failed_run(&place).await;
    let journal = place.run().join("journal");
    let calls = (0..12).map(|task_index| DispatchRecord {
        task_index,
        rollout_index: 0,
        attempt: 9,
        dispatched_at_us: 1,
        permit_wait: Duration::ZERO,
        rate_wait: Duration::ZERO,
    });
    let log = DispatchLog::new(&journal, "0000000000001-run");
    log.record(calls).unwrap();
    let name = "0000000000001-run-00000-interrupted-00000";
    let mut writer = JournalWriter::create(&journal, name, &schema::outcomes()).unwrap();
    writer.append(&interrupted(0..4)).unwrap();
    writer.seal().unwrap();

    let sim = Sim::start(quick(&[("sim", AgentConfig::default())]))
        .await
        .unwrap();
    let settings = Settings {
        resume: true,
        head_server: Some(sim.head_url().parse().unwrap()),
        ..settings
    };
    for _ in 0..2 {
        assert_eq!(sweep(settings.clone()).await.rollouts.failed, 12);
        // Nothing is asked again: the budgets are spent.
        assert_eq!(count(&store(&place), "attempts").await, 12 + 12);
    }
}
