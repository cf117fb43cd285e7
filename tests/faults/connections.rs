//! Connections that break before or within an answer.

use super::scene::{FAULTY, Scene, all_but, counted};

/// The fault, and the HTTP status that is known by then.
const BREAKS: [(&str, Option<i32>); 3] = [
    ("reset", None),
    ("fin", None),
    ("truncated_body", Some(200)),
];

#[test]
fn first_attempts_that_break_are_made_again() {
    for (fault, status) in BREAKS {
        let scene = Scene::with_first_attempts(fault);
        let ended = scene.collect("--concurrency 200").run().succeeded();
        counted(&ended, 0, 0);
        let ledger = scene.is_done_but_for(&[]);
        let expected = [
            ("infra", status, false, all_but(0)),
            ("ok", Some(200), false, all_but(0)),
        ];
        assert_eq!(ledger.ends(|_| true), expected, "{fault}");
    }
}

#[test]
fn a_task_whose_connections_always_break_is_given_up() {
    for (fault, status) in BREAKS {
        let scene = Scene::with_faults_at(&[&format!("{FAULTY}={fault}")]);
        let ended = scene.collect("--concurrency 16").run().exited_with(3);
        counted(&ended, 4, 0);
        let ledger = scene.is_done_but_for(&[FAULTY]);
        let expected = [
            ("infra", status, false, 16),
            ("infra", status, true, 4),
            ("ok", Some(200), false, all_but(4)),
        ];
        assert_eq!(ledger.ends(|_| true), expected, "{fault}");
    }
}
