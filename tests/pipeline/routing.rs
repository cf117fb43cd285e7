//! Where rows go, and when, by the rules of NeMo Gym 0.7.

use std::collections::BTreeMap;

use rollstream::Sweep;
use rollstream::config::{Concurrency, Settings};
use rollstream::gym::{GYM_07, GymChoice};
use rollstream::sim::{AgentConfig, Sim};

use super::landed;
use super::workspace::{Workspace, quick, sweep, tasks};

/// Settings by the rules of 0.7, one call at a time.
fn routed(settings: Settings) -> Settings {
    Settings {
        gym: GymChoice::Of(&GYM_07),
        concurrency: Concurrency::Fixed(1),
        ..settings
    }
}

async fn sim(agents: &[&str]) -> Sim {
    let agents: Vec<_> = agents
        .iter()
        .map(|name| (*name, AgentConfig::default()))
        .collect();
    Sim::start(quick(&agents)).await.unwrap()
}

fn rounds(tasks: std::ops::Range<i64>, repeats: i64) -> Vec<(i64, i64)> {
    let round = |rollout| tasks.clone().map(move |task| (task, rollout));
    (0..repeats).flat_map(round).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interleaved_repeats_are_sent_round_by_round_also_when_a_run_is_resumed() {
    let place = Workspace::new();
    let sim = sim(&["alpha"]).await;
    let settings = Settings {
        interleave_repeats: true,
        limit: Some(10),
        ..routed(place.settings(&tasks(25, &["alpha"]), 3, &sim))
    };
    sweep(settings.clone()).await;
    let sent = || {
        let mut attempts = landed::attempts(&place.run());
        attempts.sort_by_key(|row| row.dispatched_at);
        let sent = attempts.iter().map(|row| (row.task, row.rollout));
        sent.collect::<Vec<_>>()
    };
    assert_eq!(sent(), rounds(0..10, 3));

    let all = Settings {
        limit: None,
        resume: true,
        extend: true,
        ..settings
    };
    sweep(all).await;
    assert_eq!(sent(), [rounds(0..10, 3), rounds(10..25, 3)].concat());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interleaved_repeats_are_complete_in_several_partitions() {
    let place = Workspace::new();
    let sim = sim(&["alpha"]).await;
    let settings = Settings {
        interleave_repeats: true,
        partitions: Some(3),
        concurrency: Concurrency::Fixed(16),
        ..routed(place.settings(&tasks(50, &["alpha"]), 4, &sim))
    };
    sweep(settings).await;
    let mut done: Vec<_> = landed::attempts(&place.run())
        .iter()
        .map(|row| (row.task, row.rollout))
        .collect();
    done.sort_unstable();
    assert_eq!(done, landed::all(50, 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_several_agents_gets_a_row_and_a_resume_must_say_the_same() {
    let place = Workspace::new();
    let sim = sim(&["alpha", "beta"]).await;
    let fan_out = |agents: &[&str]| {
        let agents = agents.iter().map(|name| (*name).to_owned()).collect();
        BTreeMap::from([("alpha".to_owned(), agents)])
    };
    let settings = Settings {
        fan_out: fan_out(&["alpha", "beta"]),
        num_repeats: "alpha=2,beta=1".parse().unwrap(),
        ..routed(place.settings(&tasks(5, &["alpha"]), 1, &sim))
    };
    let report = sweep(settings.clone()).await;
    assert_eq!(report.rollouts.done, 15);
    assert_eq!(sim.counters()["alpha"].requests, 10);
    assert_eq!(sim.counters()["beta"].requests, 5);
    let mut done: Vec<_> = landed::attempts(&place.run())
        .iter()
        .map(|row| (row.task, row.rollout))
        .collect();
    done.sort_unstable();
    assert_eq!(done, landed::all(5, 3));

    for other in [fan_out(&["beta", "alpha"]), BTreeMap::new()] {
        let resumed = Settings {
            fan_out: other,
            resume: true,
            ..settings.clone()
        };
        let message = Sweep::prepare(resumed).await.unwrap_err().to_string();
        assert!(message.contains("'fan_out' was"), "{message}");
    }
    // Without an input, what is not given stays as it was.
    let resumed = Settings {
        input: Vec::new(),
        fan_out: BTreeMap::new(),
        num_repeats: "1".parse().unwrap(),
        resume: true,
        ..settings
    };
    assert_eq!(sweep(resumed).await.rollouts.done, 15);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_gets_every_row_and_it_is_said_how_many_named_another() {
    let place = Workspace::new();
    let sim = sim(&["alpha", "beta"]).await;
    let settings = Settings {
        agent: Some("beta".to_owned()),
        ..routed(place.settings(&tasks(6, &["alpha", "beta", "alpha"]), 1, &sim))
    };
    let sweep = Sweep::prepare(settings).await.unwrap();
    let warnings = sweep.warnings();
    assert!(warnings[0].contains("[('alpha', 'beta')]"), "{warnings:?}");
    assert!(warnings[1].starts_with("4 of 6 rows"), "{warnings:?}");
    sweep.collect().await.unwrap();
    assert_eq!(sim.counters()["beta"].requests, 6);
}
