use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use datafusion::prelude::SessionContext;
use serde_json::json;
use tempfile::TempDir;

use super::{AgentStatus, ErrorCount, ObservedState, RunStatus};
use crate::call::RolloutKey;
use crate::config::{AgentSettings, Settings};
use crate::outcome::{Answer, AnswerFields, Outcome, OutcomeBatchBuilder, Times, Verdict, Waited};
use crate::retry::{Failure, FailureClass};
use crate::schema;
use crate::session::{self, RunTables, unless_replaced};
use crate::store::{
    LockOptions, PartWriter, RunCounts, RunLock, RunRecord, RunState, RunStore, SegmentWriter,
    StoreError, part_name,
};

/// A run that was never collected: its tables are written by hand.
struct Written {
    _directory: TempDir,
    run: RunStore,
}

/// Agent `a` has tasks 0 and 1, agent `b` has task 2; 4 rollouts each.
const TASKS: [(i64, &str, i64); 3] = [(0, "a", 4), (1, "a", 4), (2, "b", 4)];

impl Written {
    async fn new(state: RunState) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let run = RunStore::open(directory.path().to_str().unwrap(), None).unwrap();
        let run = run.identified("1");
        Self::at(run, directory, state).await
    }

    async fn at(run: RunStore, directory: TempDir, state: RunState) -> Self {
        let written = Self {
            _directory: directory,
            run,
        };
        written.record(state, &Settings::default()).await;
        written.tasks().await;
        written
    }

    async fn record(&self, state: RunState, settings: &Settings) {
        let record = RunRecord {
            schema_version: schema::SCHEMA_VERSION,
            run_id: "1".to_owned(),
            rollstream_version: "0.0.0".to_owned(),
            state,
            created_at: "2026-01-02T03:04:05.000Z".to_owned(),
            started_at: None,
            finished_at: None,
            identity: json!({}),
            settings: serde_json::to_value(settings).unwrap(),
            inputs: Vec::new(),
            num_tasks: 3,
            agents: [].into(),
            environment_servers: [].into(),
            // Nobody should believe this.
            rollouts: RunCounts {
                planned: 99,
                ..RunCounts::default()
            },
        };
        record.save(&self.run).await.unwrap();
    }

    async fn tasks(&self) {
        let integers = |of: fn(&(i64, &str, i64)) -> i64| -> ArrayRef {
            Arc::new(
                TASKS
                    .iter()
                    .map(|task| Some(of(task)))
                    .collect::<Int64Array>(),
            )
        };
        let texts = |of: fn(&(i64, &'static str, i64)) -> &'static str| -> ArrayRef {
            Arc::new(
                TASKS
                    .iter()
                    .map(|task| Some(of(task)))
                    .collect::<StringViewArray>(),
            )
        };
        let columns = vec![
            integers(|task| task.0),
            texts(|task| task.1),
            integers(|_| 0),
            integers(|task| task.2),
            texts(|_| "tasks.jsonl"),
            integers(|task| task.0 + 1),
            texts(|_| "digest"),
            texts(|_| "{}"),
        ];
        let batch = RecordBatch::try_new(schema::tasks(), columns).unwrap();
        let name = part_name(schema::TASKS, "all");
        let mut part = PartWriter::new(&self.run, schema::TASKS, &name, schema::tasks()).unwrap();
        part.write(&batch).await.unwrap();
        part.finish().await.unwrap();
    }

    fn journal(&self, segment: &str, outcomes: impl IntoIterator<Item = Outcome>) {
        let mut builder = OutcomeBatchBuilder::new();
        for outcome in outcomes {
            builder.append(outcome).unwrap();
        }
        let directory = self.run.journal_dir();
        let name = segment.parse().unwrap();
        let mut journal = SegmentWriter::create(directory, name).unwrap();
        journal.append(&builder.finish().unwrap()).unwrap();
        journal.seal();
    }

    async fn status(&self) -> RunStatus {
        let status = RunStatus::at(&self.run, at(1000)).await.unwrap();
        let agents = status.agents.iter().map(|agent| &agent.figures);
        for figures in agents.chain([&status.total]) {
            assert_eq!(
                figures.planned,
                figures.done + figures.failed + figures.pending,
                "{status:#?}"
            );
            assert_eq!(
                figures.failed,
                figures.failed_by_class.values().sum::<u64>(),
                "{status:#?}"
            );
        }
        status
    }
}

fn at(seconds: u64) -> DateTime<Utc> {
    DateTime::from(SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000 + seconds))
}

/// An attempt that took two seconds and ended so many seconds after the beginning.
fn attempt(
    key: (i64, i64, u32),
    finished: u64,
    http_status: Option<u16>,
    verdict: Verdict,
) -> Outcome {
    let (task_index, rollout_index, attempt) = key;
    let (_, agent, _) = TASKS.iter().find(|task| task.0 == task_index).unwrap();
    let key = RolloutKey::new(task_index, rollout_index, attempt);
    let dispatched_at = SystemTime::from(at(finished - 2));
    Outcome {
        http_status,
        times: Times {
            waited: Waited {
                permit: Duration::from_millis(100 * (1 + u64::from(attempt))),
                rate: Duration::ZERO,
            },
            connect: None,
            first_byte: None,
            server: Some(Duration::from_secs(2)),
            client: Some(Duration::from_millis(1)),
        },
        concurrency_limit: u32::try_from(finished).ok(),
        ..Outcome::new(key, *agent, dispatched_at, verdict)
    }
}

fn ok(task: i64, rollout: i64, finished: u64, reward: f64) -> Outcome {
    let answer = Answer {
        body: Bytes::from_static(b"{}"),
        fields: AnswerFields {
            reward: Some(reward),
            ..AnswerFields::default()
        },
    };
    attempt((task, rollout, 9), finished, Some(200), Verdict::Ok(answer))
}

fn failed(
    key: (i64, i64, u32),
    finished: u64,
    http_status: Option<u16>,
    class: &str,
    error: &str,
) -> Outcome {
    let class = FailureClass::of_name(class).unwrap();
    let verdict = Verdict::Failed {
        failure: Failure::new(class, error),
        terminal: false,
    };
    attempt(key, finished, http_status, verdict)
}

fn agent<'a>(status: &'a RunStatus, name: &str) -> &'a AgentStatus {
    let mut agents = status.agents.iter();
    agents.find(|agent| agent.agent_name == name).unwrap()
}

/// Agent `a`: three done, one given up after two data failures, one with an infra failure yet to
/// be tried again. Agent `b`: nothing but 500s and an interrupted attempt.
async fn two_agents(state: RunState) -> Written {
    let written = Written::new(state).await;
    let refused = "POST /run: HTTP 400\nrequest";
    let a = [
        ok(0, 0, 100, 1.0),
        ok(0, 1, 190, 0.0),
        ok(1, 0, 200, 0.5),
        failed((0, 2, 0), 110, Some(400), "data", refused),
        failed((0, 2, 1), 120, Some(400), "data", refused),
        failed((0, 3, 0), 130, None, "infra", "connection refused"),
    ];
    written.journal("0000000001-run-p00-00000", a);
    let mut b: Vec<Outcome> = (0..5)
        .map(|number| {
            let error = format!("HTTP 500, request 7f{number}: no memory");
            failed(
                (2, 0, number),
                140 + u64::from(number),
                Some(500),
                "infra",
                &error,
            )
        })
        .collect();
    b.push(failed(
        (2, 1, 0),
        150,
        None,
        "interrupted",
        "the collector was stopped",
    ));
    written.journal("0000000001-run-p00-00001", b);
    written
}

#[tokio::test]
async fn every_planned_rollout_is_done_failed_or_pending_with_its_agent() {
    let status = two_agents(RunState::Interrupted).await.status().await;
    assert_eq!(status.state, ObservedState::Interrupted);
    let counts = |status: &AgentStatus| {
        let figures = &status.figures;
        (
            figures.planned,
            figures.done,
            figures.failed,
            figures.pending,
        )
    };
    let (a, b) = (agent(&status, "a"), agent(&status, "b"));
    assert_eq!(counts(a), (8, 3, 1, 4));
    assert_eq!(counts(b), (4, 0, 1, 3));
    assert_eq!(a.figures.failed_by_class, [("data".to_owned(), 1)].into());
    assert_eq!(b.figures.failed_by_class, [("infra".to_owned(), 1)].into());
    let total = &status.total;
    assert_eq!(
        (total.planned, total.done, total.failed, total.pending),
        (12, 3, 2, 7)
    );
    assert_eq!(a.figures.mean_reward, Some(0.5));
    assert_eq!(
        (b.figures.mean_reward, total.mean_reward),
        (None, Some(0.5))
    );
}

#[tokio::test]
async fn parts_that_are_replaced_while_they_are_read_are_read_again() {
    let written = Written::new(RunState::Running).await;
    let parts = written.run.local_path().unwrap().join(schema::TASKS);
    let looks = AtomicUsize::new(0);
    let read = unless_replaced(&written.run, || async {
        let session = SessionContext::new_with_config(session::config());
        let tables = RunTables::look(&written.run).await?;
        tables.register(&session).await?;
        if looks.fetch_add(1, Ordering::Relaxed) == 0 {
            fs::rename(parts.join("all.parquet"), parts.join("merged.parquet")).unwrap();
        }
        let rows = session.sql("SELECT task_index FROM tasks").await?;
        let rows = rows.collect().await?;
        Ok(rows.iter().map(RecordBatch::num_rows).sum::<usize>())
    });
    assert_eq!(read.await.unwrap(), TASKS.len());
    assert_eq!(looks.into_inner(), 2);
}

#[tokio::test]
async fn a_part_that_went_after_the_look_is_an_error_and_not_an_empty_part() {
    let state = tempfile::tempdir().unwrap();
    let memory = RunStore::open("memory:///run", Some(state.path())).unwrap();
    let memory = memory.identified("1");
    for written in [
        Written::new(RunState::Running).await,
        Written::at(memory, state, RunState::Running).await,
    ] {
        let session = SessionContext::new_with_config(session::config());
        let tables = RunTables::look(&written.run).await.unwrap();
        tables.register(&session).await.unwrap();
        let rows = session.sql("SELECT task_index FROM tasks").await.unwrap();
        let part = written.run.path("tasks/all.parquet");
        written.run.delete(&part).await.unwrap();
        let error = rows.collect().await.unwrap_err().to_string();
        assert!(error.contains("run the command again"), "{error}");
    }
}

#[tokio::test]
async fn attempts_are_told_apart_by_outcome_and_http_status() {
    let status = two_agents(RunState::Finished).await.status().await;
    let a = &agent(&status, "a").figures;
    let outcome = |name: &str| (a.outcomes[name].attempts, &a.outcomes[name].http_statuses);
    assert_eq!(a.attempts, 6);
    assert_eq!(outcome("ok"), (3, &[(200, 3)].into()));
    assert_eq!(outcome("data"), (2, &[(400, 2)].into()));
    assert_eq!(outcome("infra"), (1, &[].into()));
    assert_eq!(outcome("timeout"), (0, &[].into()));
    assert_eq!(status.total.attempts, 12);
    assert_eq!(status.total.outcomes["infra"].attempts, 6);
    assert_eq!(
        status.total.outcomes["infra"].http_statuses,
        [(500, 5)].into()
    );
    assert_eq!(status.total.outcomes["interrupted"].attempts, 1);
    assert_eq!(a.first_finished_at, Some(at(100)));
    assert_eq!(status.total.last_finished_at, Some(at(200)));
    assert_eq!(agent(&status, "a").concurrency_limit, Some(200));
    assert_eq!(agent(&status, "b").concurrency_limit, Some(150));
    assert_eq!(a.mean_times.server_ms, Some(2000.0));
    assert_eq!(a.mean_times.connect_ms, None);
    let b = agent(&status, "b").figures.mean_times;
    assert_eq!(b.permit_wait_ms, Some(1600.0 / 6.0));
}

#[tokio::test]
async fn errors_that_differ_only_in_numbers_are_one() {
    let status = two_agents(RunState::Finished).await.status().await;
    let error = |outcome: &str, http_status, attempts, error: &str| ErrorCount {
        outcome: outcome.to_owned(),
        http_status,
        attempts,
        error: error.to_owned(),
    };
    assert_eq!(
        agent(&status, "a").errors,
        [
            error("data", Some(400), 2, "POST /run: HTTP 400 request"),
            error("infra", None, 1, "connection refused"),
        ]
    );
    assert_eq!(
        agent(&status, "b").errors,
        [error(
            "infra",
            Some(500),
            5,
            "HTTP 500, request 7f0: no memory"
        )]
    );
}

#[tokio::test]
async fn only_the_three_most_frequent_errors_are_named() {
    let written = Written::new(RunState::Finished).await;
    let kinds = [
        "once",
        "often",
        "often",
        "often",
        "also once",
        "twice",
        "twice",
    ];
    let outcomes = (0..)
        .zip(kinds)
        .map(|(number, error)| failed((2, 0, number), 100, None, "timeout", error));
    written.journal("0000000001-run-p00-00000", outcomes);
    let status = written.status().await;
    let errors = &agent(&status, "b").errors;
    let named: Vec<_> = errors
        .iter()
        .map(|error| (error.error.as_str(), error.attempts))
        .collect();
    assert_eq!(named, [("often", 3), ("twice", 2), ("also once", 1)]);
}

#[tokio::test]
async fn what_is_given_up_is_a_matter_of_the_newest_budgets() {
    let written = two_agents(RunState::Finished).await;
    let patient = AgentSettings {
        infra_budget: Some(6),
        ..AgentSettings::default()
    };
    let settings = Settings {
        agents: [("b".to_owned(), patient)].into(),
        infra_budget: 1,
        ..Settings::default()
    };
    written.record(RunState::Finished, &settings).await;
    let status = written.status().await;
    let failed = |name: &str| agent(&status, name).figures.failed_by_class.clone();
    assert_eq!(
        failed("a"),
        [("data".to_owned(), 1), ("infra".to_owned(), 1)].into()
    );
    assert_eq!(failed("b"), [].into());
}

#[tokio::test]
async fn the_rate_of_a_run_that_is_over_is_that_of_its_last_minute() {
    let status = two_agents(RunState::Finished).await.status().await;
    let window = status.rate_window.unwrap();
    assert_eq!(
        (window.since, window.until, window.is_current),
        (at(140), at(200), false)
    );
    assert_eq!(
        agent(&status, "a").figures.rollouts_per_second,
        Some(2.0 / 60.0)
    );
    assert_eq!(status.total.rollouts_per_second, Some(2.0 / 60.0));
    assert_eq!(status.total.eta_seconds, None);
}

#[tokio::test]
async fn a_run_is_live_as_long_as_somebody_holds_its_lock() {
    let written = two_agents(RunState::Running).await;
    let status = written.status().await;
    assert_eq!((status.state, status.locks.len()), (ObservedState::Died, 0));

    let lock = RunLock::acquire(&written.run, LockOptions::default())
        .await
        .unwrap();
    let now = Utc::now();
    written.journal(
        "0000000002-run-p00-00000",
        [0, 1, 2].map(|rollout| {
            let mut outcome = ok(2, rollout + 1, 100, 1.0);
            outcome.dispatched_at = SystemTime::from(now) - Duration::from_secs(2);
            outcome
        }),
    );
    let status = RunStatus::at(&written.run, now + Duration::from_secs(30))
        .await
        .unwrap();
    assert_eq!(status.state, ObservedState::Running);
    let [held] = status.locks.as_slice() else {
        panic!("{:?}", status.locks);
    };
    assert!(held.alive && held.pid == std::process::id() && held.scope == "the whole run");
    let window = status.rate_window.unwrap();
    assert!(
        window.is_current && window.since == held.since,
        "{window:?} {held:?}"
    );
    let rate = 3.0 / window.seconds;
    let b = &agent(&status, "b").figures;
    assert_eq!(
        (b.done, b.pending, b.rollouts_per_second),
        (3, 0, Some(rate))
    );
    assert_eq!(b.eta_seconds, Some(0.0));
    assert_eq!(status.total.eta_seconds, Some(4.0 / rate));
    assert_eq!(agent(&status, "a").figures.eta_seconds, None);

    lock.release().await;
    assert_eq!(written.status().await.state, ObservedState::Died);
}

#[tokio::test]
async fn rollouts_that_nobody_asked_for_do_not_count() {
    let written = Written::new(RunState::Finished).await;
    written.journal(
        "0000000001-run-p00-00000",
        [ok(0, 0, 100, 1.0), ok(0, 4, 100, 0.0), ok(1, 77, 100, 0.0)],
    );
    let status = written.status().await;
    assert_eq!((status.total.done, status.total.pending), (1, 11));
    assert_eq!(status.total.mean_reward, Some(1.0));
}

#[tokio::test]
async fn a_run_of_which_nothing_was_sent_yet_has_no_rates() {
    let status = Written::new(RunState::Running).await.status().await;
    assert_eq!((status.total.pending, status.total.attempts), (12, 0));
    assert_eq!(
        (status.rate_window, status.total.rollouts_per_second),
        (None, None)
    );
}

#[tokio::test]
async fn where_no_run_is_none_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let run = RunStore::open(directory.path().to_str().unwrap(), None).unwrap();
    let error = RunStatus::of(&run).await.unwrap_err();
    assert!(
        matches!(error.cause(), Some(StoreError::NoRun { .. })),
        "{error}"
    );
}

#[tokio::test]
async fn a_run_on_an_object_store_is_looked_at_like_any_other() {
    let state_dir = tempfile::tempdir().unwrap();
    let run = RunStore::open("memory:///sweeps/a", Some(state_dir.path())).unwrap();
    let run = run.identified("1");
    let written = Written::at(run, state_dir, RunState::Interrupted).await;
    written.journal("0000000001-run-p00-00000", [ok(0, 0, 100, 1.0)]);
    let status = written.status().await;
    assert_eq!(status.place, "memory:///sweeps/a");
    assert_eq!((status.total.done, status.total.pending), (1, 11));
}

#[test]
fn a_driver_that_a_store_with_a_fast_clock_has_just_heard_lives() {
    let now = Utc::now();
    for (ago, lives) in [(-30, true), (0, true), (9, true), (11, false)] {
        let driven_at = now - chrono::TimeDelta::seconds(ago);
        assert_eq!(super::is_recent(driven_at, now), lives, "{ago} s");
    }
}
