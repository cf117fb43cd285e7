//! Signals: SIGINT and SIGTERM end a sweep in good order, SIGHUP does nothing.

use super::scene::{Scene, all_but, rollouts};

#[test]
fn what_is_in_flight_at_an_interrupt_is_waited_for() {
    for signal in ["INT", "TERM"] {
        let scene = Scene::slow(20);
        let running = scene.collect("--concurrency 4").start();
        scene
            .agents
            .until("it runs", |agents| agents.num_requests() >= rollouts() / 5);
        running.signal(signal);
        running.end().exited_with(130);
        scene.has_state("interrupted");
        let asked = scene.agents.num_requests();
        assert!(asked < rollouts(), "it was not stopped");
        let ledger = scene.ledger();
        scene.answers_are_right(&ledger);
        scene.requests_are_on_record(&ledger);
        let answered = ("ok", Some(200), false, asked as usize);
        assert_eq!(ledger.ends(|_| true), [answered]);

        scene.collect("--resume").run().succeeded();
        scene.is_done_but_for(&[]);
        assert_eq!(scene.agents.num_requests(), rollouts());
    }
}

#[test]
fn a_sweep_outlives_its_terminal() {
    let scene = Scene::slow(20);
    let running = scene.collect("--concurrency 8").start();
    for requests in [1, 3, 5].map(|tenths| rollouts() * tenths / 10) {
        scene
            .agents
            .until("it runs", |agents| agents.num_requests() >= requests);
        running.signal("HUP");
    }
    running.end().succeeded();
    let ledger = scene.is_done_but_for(&[]);
    assert_eq!(
        ledger.ends(|_| true),
        [("ok", Some(200), false, all_but(0))]
    );
}
