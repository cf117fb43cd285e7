//! An agent's server that answers 500, or refuses a request.

use super::scene::{FAULTY, Scene, all_but, counted};

#[test]
fn a_task_whose_requests_always_fail_is_given_up_and_the_others_are_done() {
    let scene = Scene::with_faults_at(&["7=error_500"]);
    let ended = scene.collect("--concurrency 16").run().exited_with(3);
    counted(&ended, 4, 0);
    let ledger = scene.is_done_but_for(&[FAULTY]);
    let expected = [
        ("infra", Some(500), false, 16),
        ("infra", Some(500), true, 4),
        ("ok", Some(200), false, all_but(4)),
    ];
    assert_eq!(ledger.ends(|_| true), expected);
    for attempt in ledger.of_task(FAULTY) {
        let why = attempt.error.as_deref().unwrap();
        assert!(
            why.contains("POST http://") && why.contains("HTTP 500"),
            "{why}"
        );
        assert_eq!(attempt.terminal, attempt.attempt == 4, "{attempt:?}");
    }
    scene.has_state("finished");

    // A budget that is spent stays so.
    let before = scene.agents.num_requests();
    let ended = scene.collect("--resume").run().exited_with(3);
    counted(&ended, 4, 0);
    assert_eq!(scene.agents.num_requests(), before);
}

#[test]
fn first_attempts_that_fail_are_made_again() {
    let scene = Scene::with_first_attempts("error_500");
    let ended = scene.collect("--concurrency 200").run().succeeded();
    counted(&ended, 0, 0);
    let ledger = scene.is_done_but_for(&[]);
    let expected = [
        ("infra", Some(500), false, all_but(0)),
        ("ok", Some(200), false, all_but(0)),
    ];
    assert_eq!(ledger.ends(|_| true), expected);
}

#[test]
fn a_request_that_the_agent_calls_bad_is_made_twice() {
    let scene = Scene::with_faults_at(&["7=bad_request_400"]);
    scene.collect("--concurrency 16").run().exited_with(3);
    let ledger = scene.is_done_but_for(&[FAULTY]);
    let expected = [
        ("data", Some(400), false, 4),
        ("data", Some(400), true, 4),
        ("ok", Some(200), false, all_but(4)),
    ];
    assert_eq!(ledger.ends(|_| true), expected);
}

#[test]
fn budgets_are_what_the_flags_say() {
    let scene = Scene::with_faults_at(&["7=error_500", "8=bad_request_400", "9=failure_class"]);
    let options = "--infra-budget 2 --data-budget 3 --max-attempts 1";
    scene.collect(options).run().exited_with(3);
    let ledger = scene.is_done_but_for(&[7, 8, 9]);
    for (task, attempts) in [(7, 8), (8, 12), (9, 4)] {
        assert_eq!(ledger.of_task(task).len(), attempts, "task {task}");
    }
}

#[test]
fn a_resume_with_a_larger_budget_tries_again() {
    let scene = Scene::with_faults_at(&["7:0:0=error_500", "7:0:1=error_500", "7:0:2=error_500"]);
    let ended = scene.collect("--infra-budget 2").run().exited_with(3);
    counted(&ended, 1, 0);
    let ended = scene.collect("--resume").run().succeeded();
    counted(&ended, 0, 0);
    let rows = |attempt: i64| move |row: &super::ledger::Attempt| row.attempt == attempt;
    let ledger = super::ledger::Ledger::read(&scene.folder.path("run"));
    assert_eq!(ledger.ends(rows(1)), [("infra", Some(500), true, 1)]);
    assert_eq!(ledger.ends(rows(2)), [("infra", Some(500), false, 1)]);
    assert_eq!(ledger.ends(rows(3)), [("ok", Some(200), false, 1)]);
}

#[test]
fn an_agent_that_the_head_server_does_not_know_is_found_before_anything_is_sent() {
    let scene = Scene::with_faults_at(&[]);
    let program = scene
        .folder
        .rollstream(super::scene::COLLECT)
        .args("--agent nobody");
    let ended = program.args(&scene.agents.options()).run().exited_with(2);
    ended.complaining(&["knows no agent", "nobody", "sim"]);
    assert_eq!(scene.agents.num_requests(), 0);
    assert!(!scene.folder.has("run"));
}
