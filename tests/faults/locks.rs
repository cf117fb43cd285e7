//! One writer at a time.

use super::load;
use super::scene::{Scene, rollouts};

/// A sweep whose calls hang, so that it holds its lock.
fn held() -> (Scene, crate::common::Running) {
    let scene = Scene::with_faults_at(&["7=hang"]);
    let running = scene.collect("--concurrency 16").start();
    scene.agents.until("all others are answered", |agents| {
        agents.counts("sim").ok == rollouts() - 4
    });
    (scene, running)
}

#[test]
fn a_second_collector_is_refused_with_the_name_of_the_first() {
    let (scene, mut running) = held();
    let before = scene.agents.num_requests();
    for options in ["--resume", "--shard 1/2 --resume"] {
        let ended = scene.collect(options).run();
        assert!(!matches!(ended.code, Some(0 | 3)), "{ended:#?}");
        let process = format!("process {}", running.pid());
        ended.complaining(&[&process, "--break-lock"]);
    }
    assert_eq!(scene.agents.num_requests(), before);
    assert!(running.is_running());
}

#[test]
fn a_lock_that_is_broken_ends_its_holder() {
    let (scene, running) = held();
    let healthy = Scene::with_faults_at(&[]);
    let program = super::scene::collecting(&scene.folder);
    let program = program.args("--agent sim --resume --break-lock");
    let program = program.args(&healthy.agents.options());
    program.args(&load::raised("")).run().succeeded();
    let ended = running.end().exited_with(1);
    assert!(ended.stderr.contains("lock"), "{ended:#?}");
    let ledger = scene.ledger();
    assert_eq!(ledger.rollouts.len() as u64, rollouts());
    scene.requests_are_on_record(&ledger);
    scene.has_state("finished");
}
