//! Limits that end a sweep early, or slow it down.

use std::time::Duration;

use rollstream::sim::{AgentChange, Latency, SimConfig};

use super::ledger::Ledger;
use super::load::concurrency;
use super::scene::{Scene, counted, quick, rates, rollouts};

#[test]
fn requests_come_no_faster_than_the_limit() {
    let scene = Scene::with_faults_at(&["7:0:0=error_500"]);
    scene.collect("--requests-per-second 100").run().succeeded();
    let ledger = scene.is_done_but_for(&[]);
    let mut sent: Vec<i64> = ledger
        .attempts
        .iter()
        .map(|row| row.dispatched_at)
        .collect();
    sent.sort_unstable();
    assert_eq!(sent.len() as u64, rollouts() + 1);
    for (n, at) in sent.iter().enumerate() {
        let earliest = sent[0] + n as i64 * 10_000;
        // Two clocks: what is recorded is the time of day, what is kept is the pause.
        assert!(at + 2000 >= earliest, "{n}: {} us early", earliest - at);
    }
}

/// A sweep of which every rollout is given up at once, and what is asked after it was stopped.
#[track_caller]
fn stopped(options: &str, least: usize) -> Scene {
    let scene = Scene::new(SimConfig {
        faults: rates(&[("failure_terminal", 1.0)]),
        latency: Latency::Fixed(Duration::from_millis(5)),
        ..quick()
    });
    let ended = scene.collect("--concurrency 4").args(options).run();
    let ended = ended.exited_with(4);
    assert!(ended.stdout.contains("stopped in"), "{ended:#?}");
    scene.has_state("stopped");
    let ledger = scene.ledger();
    scene.requests_are_on_record(&ledger);
    let given_up = ledger.attempts.iter().filter(|row| row.terminal).count();
    // What was in flight is waited for.
    let most = least + concurrency(4) as usize;
    assert!((least..most).contains(&given_up), "{given_up}");
    scene
}

#[test]
fn too_many_failures_stop_a_sweep_that_can_be_gone_on_with() {
    let scene = stopped("--max-failures 10", 10);
    let given_up = scene.ledger().attempts.len() as u64;
    scene.heal();
    let ended = scene.collect("--resume").run().exited_with(3);
    counted(&ended, given_up, 0);
    scene.has_state("finished");
}

#[test]
fn too_large_a_share_of_failures_stops_a_sweep() {
    stopped("--max-error-rate 0.3", 20);
}

#[test]
fn a_share_of_failures_that_is_allowed_stops_nothing() {
    let scene = Scene::with_faults_at(&["1=failure_terminal", "2=failure_terminal"]);
    let options = "--concurrency 16 --max-error-rate 0.6 --max-failures 9";
    scene.collect(options).run().exited_with(3);
    scene.is_done_but_for(&[1, 2]);
}

#[test]
fn a_deadline_stops_a_sweep_that_can_be_gone_on_with() {
    // How many calls are sent within half a second is about the machine, if there are many.
    let scene = Scene::new(SimConfig {
        latency: Latency::Fixed(Duration::from_secs(3600)),
        ..quick()
    })
    .with_its_own_load();
    let options = "--concurrency 16 --deadline 500ms --grace 1ms";
    let ended = scene.collect(options).run().exited_with(4);
    assert!(
        ended.stdout.contains("0 of 200 rollouts done"),
        "{ended:#?}"
    );
    scene.has_state("stopped");
    let ledger = Ledger::read(&scene.folder.path("run"));
    let in_flight = ledger.ends(|_| true);
    assert!(
        in_flight.is_empty() || in_flight == [("interrupted", None, false, 16)],
        "{in_flight:?}"
    );
    scene.agents.change(
        "sim",
        AgentChange {
            latency: Some(quick().latency),
            ..AgentChange::default()
        },
    );
    scene.collect("--resume").run().succeeded();
    scene.is_done_but_for(&[]);
}
