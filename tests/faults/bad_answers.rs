//! Answers of status 200 that are none.

use super::scene::{FAULTY, Scene, all_but, counted};

/// A task whose answers are always bad is given up after two of them, and the others are done.
#[track_caller]
fn is_data(fault: &str, error: &str) {
    let scene = Scene::with_faults_at(&[&format!("{FAULTY}={fault}")]);
    let options = "--concurrency 16 --max-body 1MB";
    let ended = scene.collect(options).run().exited_with(3);
    counted(&ended, 4, 0);
    let ledger = scene.is_done_but_for(&[FAULTY]);
    let expected = [
        ("data", Some(200), false, 4),
        ("data", Some(200), true, 4),
        ("ok", Some(200), false, all_but(4)),
    ];
    assert_eq!(ledger.ends(|_| true), expected);
    for attempt in ledger.of_task(FAULTY) {
        let why = attempt.error.as_deref().unwrap();
        assert!(why.contains(error) && why.len() < 2000, "{why}");
    }
}

#[test]
fn html() {
    is_data("not_json", "Bad gateway");
}

#[test]
fn no_reward() {
    is_data("missing_reward", "no numeric 'reward'");
}

#[test]
fn a_reward_that_is_no_number() {
    is_data("not_a_number", "not a JSON object");
}

#[test]
fn bytes_that_are_no_text() {
    is_data("invalid_utf8", "not UTF-8");
}

#[test]
fn nesting_without_measure() {
    is_data("deep_json", "nests deeper");
}

#[test]
fn a_body_without_end() {
    is_data("endless_body", "--max-body");
}

#[test]
fn a_gzip_bomb() {
    is_data("gzip_bomb", "--max-body");
}
