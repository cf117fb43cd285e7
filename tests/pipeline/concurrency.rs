//! How many calls are in flight: never more than asked for, and as many as asked for; and what is
//! slow holds up nobody else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::TryStreamExt;
use rollstream::agent::{Agent, Reply, RolloutRequest};
use rollstream::config::{AgentSettings, Concurrency, Settings};
use rollstream::sim::{AgentConfig, FaultKind, FaultRates, Latency, Sim, SimConfig};
use rollstream::store::RunState;
use tokio::sync::Barrier;

use super::landed::{self, Attempt};
use super::operator::{Operator, answered};
use super::workspace::{Workspace, counts, quick, sweep, sweep_until, tasks};

fn limited(agent: &str, concurrency: usize) -> BTreeMap<String, AgentSettings> {
    BTreeMap::from([(
        agent.to_owned(),
        AgentSettings {
            concurrency: Some(Concurrency::Fixed(concurrency)),
            ..AgentSettings::default()
        },
    )])
}

fn hanging() -> AgentConfig {
    AgentConfig {
        faults: Some(FaultRates(BTreeMap::from([(FaultKind::Hang, 1.0)]))),
        ..AgentConfig::default()
    }
}

/// The most attempts that were under way at a time, by their own times.
fn most_at_a_time(attempts: &[Attempt]) -> usize {
    let at = |now: i64| {
        attempts
            .iter()
            .filter(|row| row.dispatched_at <= now && row.finished_at.is_some_and(|at| now < at))
            .count()
    };
    attempts
        .iter()
        .map(|row| at(row.dispatched_at))
        .max()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_are_never_exceeded() {
    let place = Workspace::new();
    let sim = Sim::start(SimConfig {
        latency: Latency::Fixed(Duration::from_millis(10)),
        ..quick(&[
            ("narrow", AgentConfig::default()),
            ("wide", AgentConfig::default()),
        ])
    });
    let sim = sim.await.unwrap();
    let settings = Settings {
        concurrency: Concurrency::Fixed(7),
        agents: limited("narrow", 2),
        ..place.settings(&tasks(60, &["narrow", "wide", "wide"]), 2, &sim)
    };
    let report = sweep(settings).await;
    assert_eq!(report.rollouts.done, 120);
    assert!(counts(&sim, "narrow").max_in_flight <= 2);
    assert!(counts(&sim, "wide").max_in_flight <= 7);
    let attempts = landed::attempts(&place.run());
    assert!(most_at_a_time(&attempts) <= 7);
    let narrow: Vec<Attempt> = attempts
        .into_iter()
        .filter(|row| row.agent == "narrow")
        .collect();
    assert!(most_at_a_time(&narrow) <= 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_are_reached() {
    let place = Workspace::new();
    let sim = Arc::new(
        Sim::start(quick(&[("narrow", hanging()), ("wide", hanging())]))
            .await
            .unwrap(),
    );
    let settings = Settings {
        concurrency: Concurrency::Fixed(8),
        agents: limited("narrow", 3),
        ..place.settings(&tasks(40, &["narrow", "wide"]), 1, &sim)
    };
    let watched = Arc::clone(&sim);
    let report = sweep_until(
        settings,
        "both agents are as busy as they may be",
        move |_| {
            let sim = Arc::clone(&watched);
            Box::new(move || {
                counts(&sim, "narrow").in_flight == 3 && counts(&sim, "wide").in_flight == 5
            })
        },
    )
    .await;
    assert_eq!(
        (
            counts(&sim, "narrow").requests,
            counts(&sim, "wide").requests
        ),
        (3, 5)
    );
    assert_eq!(report.state, RunState::Interrupted);
    assert_eq!((report.rollouts.planned, report.rollouts.pending), (40, 40));
    let attempts = landed::attempts(&place.run());
    assert_eq!(attempts.len(), 8);
    assert!(
        attempts
            .iter()
            .all(|row| row.outcome == "interrupted" && !row.terminal)
    );
}

/// Answers nobody before so many have asked, and counts them.
#[derive(Debug)]
struct Together {
    barrier: Barrier,
    in_flight: AtomicUsize,
    most: AtomicUsize,
}

#[async_trait]
impl Agent for Together {
    async fn run(&self, _: RolloutRequest) -> Reply {
        let now = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        self.barrier.wait().await;
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        answered(r#"{"reward": 1}"#)
    }

    fn address(&self) -> &str {
        "together"
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_in_flight_across_the_borders_of_batches() {
    let agent = Arc::new(Together {
        barrier: Barrier::new(6),
        in_flight: AtomicUsize::new(0),
        most: AtomicUsize::new(0),
    });
    // Four rows a batch, six calls that wait for each other: one batch alone would wait forever.
    let operator = Operator::new(Arc::clone(&agent) as _, None, 15, 4);
    let rows = operator.stream(6).try_collect::<Vec<_>>();
    let rows = tokio::time::timeout(Duration::from_secs(120), rows)
        .await
        .expect("six calls are never in flight")
        .unwrap();
    assert_eq!(rows.iter().map(|batch| batch.num_rows()).sum::<usize>(), 60);
    assert_eq!(agent.most.load(Ordering::SeqCst), 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_at_its_own_limit_holds_up_nobody_elses_rows() {
    let place = Workspace::new();
    let slow = AgentConfig {
        latency: Some(Latency::Fixed(Duration::from_secs(3600))),
        ..AgentConfig::default()
    };
    let sim = Sim::start(quick(&[("slow", slow), ("swift", AgentConfig::default())]))
        .await
        .unwrap();
    let settings = Settings {
        concurrency: Concurrency::Fixed(2),
        agents: limited("slow", 1),
        // The rows of the one that is slow all come first.
        ..place.settings(&(tasks(40, &["slow"]) + &tasks(80, &["swift"])), 1, &sim)
    };
    let report = sweep_until(settings, "the swift agent is done", |sweep| {
        let progress = sweep.progress();
        Box::new(move || progress.by_agent()["swift"].pending() == 0)
    })
    .await;
    assert_eq!((report.rollouts.done, report.rollouts.pending), (80, 40));
    let attempts = landed::attempts(&place.run());
    let of = |agent: &str| {
        attempts
            .iter()
            .filter(|row| row.agent == agent)
            .cloned()
            .collect::<Vec<_>>()
    };
    let (slow, swift) = (of("slow"), of("swift"));
    assert_eq!((slow.len(), swift.len()), (1, 80));
    assert!(
        swift
            .iter()
            .all(|row| row.outcome == "ok" && row.finished_at <= slow[0].finished_at)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_straggler_holds_up_nobody() {
    let place = Workspace::new();
    let sim = Sim::start(SimConfig {
        fault_at: vec!["0:0=hang".parse().unwrap()],
        ..quick(&[("sim", AgentConfig::default())])
    });
    let sim = sim.await.unwrap();
    let settings = Settings {
        concurrency: Concurrency::Fixed(2),
        ..place.settings(&tasks(50, &["sim"]), 2, &sim)
    };
    let report = sweep_until(settings, "all but the straggler are done", |sweep| {
        let progress = sweep.progress();
        Box::new(move || progress.total().done == 99)
    })
    .await;
    assert_eq!(report.state, RunState::Interrupted);
    assert_eq!((report.rollouts.done, report.rollouts.pending), (99, 1));
    assert_eq!(landed::done(&place.run()), landed::all(50, 2)[1..]);
    let attempts = landed::attempts(&place.run());
    let interrupted: Vec<_> = attempts.iter().filter(|row| row.outcome != "ok").collect();
    assert_eq!(interrupted.len(), 1);
    assert_eq!(
        (
            interrupted[0].task,
            interrupted[0].rollout,
            &*interrupted[0].outcome
        ),
        (0, 0, "interrupted")
    );
}
