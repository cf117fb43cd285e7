//! What an agent says of its own answers: `_ng_no_persist`, `_ng_failure_class` and `_ng_failure_terminal`.

use rollstream::sim::SimConfig;
use serde_json::Value;

use super::scene::{FAULTY, Scene, all_but, counted, quick, rollouts};

#[test]
fn an_answer_that_is_to_be_forgotten_costs_nothing_and_is_pending_for_a_resume() {
    let scene = Scene::new(SimConfig {
        fault_at: vec!["7=no_persist".parse().unwrap()],
        fault_attempts: Some(1),
        ..quick()
    });
    let ended = scene.collect("--concurrency 16").run().exited_with(3);
    counted(&ended, 0, 4);
    scene.has_state("incomplete");
    let ledger = scene.is_done_but_for(&[FAULTY]);
    let forgotten = ("not_persisted", Some(200), false, 4);
    assert_eq!(
        ledger.ends(|_| true),
        [forgotten, ("ok", Some(200), false, all_but(4))]
    );
    // Nothing of them is kept but their rewards, which trackers show.
    let answers = ledger.attempts.iter().map(|attempt| &attempt.answer);
    for answer in answers.flatten() {
        let answer: serde_json::Map<String, Value> = serde_json::from_str(answer).unwrap();
        assert!(answer.keys().eq(["reward"]), "{answer:?}");
    }

    let ended = scene.collect("--resume").run().succeeded();
    counted(&ended, 0, 0);
    let ledger = scene.is_done_but_for(&[]);
    assert_eq!(
        ledger.ends(|row| row.task == FAULTY),
        [forgotten, ("ok", Some(200), false, 4)]
    );
    assert_eq!(scene.agents.num_requests(), rollouts() + 4);
    scene.has_state("finished");
}

#[test]
fn an_answer_that_is_always_to_be_forgotten_never_uses_up_a_budget() {
    let scene = Scene::with_faults_at(&["7=no_persist"]);
    for _ in 0..7 {
        let ended = scene.collect("--resume").run().exited_with(3);
        counted(&ended, 0, 4);
    }
    let ledger = scene.is_done_but_for(&[FAULTY]);
    assert_eq!(
        ledger.ends(|row| row.task == FAULTY),
        [("not_persisted", Some(200), false, 28)]
    );
}

#[test]
fn failures_that_the_agent_reports_count_over_all_runs() {
    let scene = Scene::with_faults_at(&["7=failure_class"]);
    let ended = scene.collect("--max-attempts 2").run().exited_with(3);
    counted(&ended, 4, 0);
    let ended = scene.collect("--resume --max-attempts 3").run();
    counted(&ended.exited_with(3), 4, 0);
    let ledger = super::ledger::Ledger::read(&scene.folder.path("run"));
    let expected = [
        ("agent_flagged", Some(200), false, 4),
        ("agent_flagged", Some(200), true, 8),
    ];
    assert_eq!(ledger.ends(|row| row.task == FAULTY), expected);
    for attempt in ledger.of_task(FAULTY) {
        let answer = attempt.answer.as_deref().unwrap();
        assert!(answer.contains("simulated_failure"), "{answer}");
    }
}

#[test]
fn a_failure_that_the_agent_reports_is_tried_three_times() {
    let scene = Scene::with_faults_at(&["7=failure_class"]);
    let ended = scene.collect("--concurrency 16").run().exited_with(3);
    counted(&ended, 4, 0);
    let ledger = scene.is_done_but_for(&[FAULTY]);
    let expected = [
        ("agent_flagged", Some(200), false, 8),
        ("agent_flagged", Some(200), true, 4),
        ("ok", Some(200), false, all_but(4)),
    ];
    assert_eq!(ledger.ends(|_| true), expected);
}

#[test]
fn never_again_means_never_again() {
    let scene = Scene::with_faults_at(&["7=failure_terminal"]);
    let ended = scene.collect("--concurrency 16").run().exited_with(3);
    counted(&ended, 4, 0);
    let ended = scene.collect("--resume --max-attempts 9").run();
    counted(&ended.exited_with(3), 4, 0);
    let ledger = scene.is_done_but_for(&[FAULTY]);
    let terminal = ("agent_flagged", Some(200), true, 4);
    assert_eq!(
        ledger.ends(|_| true),
        [terminal, ("ok", Some(200), false, all_but(4))]
    );
    let of_task = ledger.of_task(FAULTY);
    assert!(of_task.iter().all(|attempt| attempt.failure_terminal));
    assert_eq!(scene.agents.num_requests(), rollouts());
}
