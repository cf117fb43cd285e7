//! An agent that takes a request and never answers, or never ends its answer.

use std::thread::sleep;
use std::time::Duration;

use serde_json::json;

use super::ledger::Ledger;
use super::load::limit;
use super::raw_agent::{RawAgent, chunk, chunked};
use super::scene::{COLLECT, FAULTY, Scene, all_but, counted, rollouts};
use crate::common::{Folder, sums};

/// An agent, a model, a server of tools or an environment whose answers go on for ever, too small to ever be too large.
fn dripping() -> RawAgent {
    RawAgent::start(|_, stream| {
        chunked(stream)?;
        loop {
            chunk(stream, b" ")?;
            // The fault itself: nothing waits for it.
            sleep(Duration::from_millis(10));
        }
    })
}

#[test]
fn an_answer_that_never_ends_ends_at_its_timeout_whatever_the_agent_is() {
    for kind in [
        "url = 'URL'",
        "kind = 'responses'\nmodel_url = 'URL'\nresources_url = 'URL'",
        "kind = 'multi-turn'\nmodel_url = 'URL'\nenvironments.math = { kind = 'exact-match' }",
    ] {
        let agent = dripping();
        let tasks = sums(2).into_iter().map(|task| {
            let task = task.with("task_name", "math");
            task.with("extra_env_info", json!({ "expected_answer": "1" }))
        });
        let folder = Folder::with_tasks(tasks);
        let kind = kind.replace("URL", &agent.url());
        folder.write("drip.toml", &format!("[agents.drip]\n{kind}\n"));
        let options = "--agent drip --config drip.toml --rollout-timeout 300ms --infra-budget 2";
        let collect = folder.rollstream(COLLECT).args(options);
        collect.run().exited_with(3);
        let ledger = Ledger::read(&folder.path("run"));
        let expected = [("timeout", None, false, 8), ("timeout", None, true, 8)];
        assert_eq!(ledger.ends(|_| true), expected, "{kind}");
        for attempt in &ledger.attempts {
            let why = attempt.error.as_deref().unwrap();
            assert!(why.contains("--rollout-timeout"), "{why}");
        }
    }
}

#[test]
fn a_rollout_without_an_answer_ends_at_its_timeout() {
    let scene = Scene::with_faults_at(&["7=hang"]);
    // The others have more attempts than a machine that is busy could need.
    let options = format!("--concurrency 16 --rollout-timeout {}", limit("300ms"));
    let ended = scene.collect(&options).run().exited_with(3);
    counted(&ended, 4, 0);
    let ledger = scene.is_done_but_for(&[FAULTY]);
    let expected = [("timeout", None, false, 16), ("timeout", None, true, 4)];
    assert_eq!(ledger.ends(|row| row.task == FAULTY), expected);
    for attempt in ledger.of_task(FAULTY) {
        let why = attempt.error.as_deref().unwrap();
        assert!(why.contains("--rollout-timeout"), "{why}");
    }
}

#[test]
fn an_answer_that_does_not_begin_ends_at_its_timeout() {
    let scene = Scene::with_faults_at(&["7=hang"]);
    let timeout = limit("300ms");
    let options = format!("--concurrency 16 --first-byte-timeout {timeout} --infra-budget 2");
    scene.collect(&options).run().exited_with(3);
    let ledger = scene.ledger();
    let expected = [("timeout", None, false, 4), ("timeout", None, true, 4)];
    assert_eq!(ledger.ends(|row| row.task == FAULTY), expected);
    for attempt in ledger.of_task(FAULTY) {
        let why = attempt.error.as_deref().unwrap();
        assert!(why.contains("--first-byte-timeout"), "{why}");
    }
}

#[test]
fn without_a_timeout_the_others_are_done_and_an_interrupt_ends_it() {
    let scene = Scene::with_faults_at(&["7=hang"]);
    let mut running = scene.collect("--concurrency 16 --grace 1ms").start();
    scene.agents.until("all others are answered", |agents| {
        agents.counts("sim").ok == rollouts() - 4
    });
    // Looked at from outside, while it hangs.
    while scene.status()["total"]["done"] != rollouts() - 4 {
        assert!(running.is_running());
    }
    running.signal("INT");
    let ended = running.end().exited_with(130);
    counted(&ended, 0, 4);
    scene.has_state("interrupted");
    let ledger = scene.is_done_but_for(&[FAULTY]);
    let expected = [
        ("interrupted", None, false, 4),
        ("ok", Some(200), false, all_but(4)),
    ];
    assert_eq!(ledger.ends(|_| true), expected);
}
