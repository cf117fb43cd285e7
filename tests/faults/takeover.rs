//! One writer after another: nothing is asked twice, and every request has its row.

use std::collections::BTreeSet;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rollstream::sim::{Latency, SimConfig};

use super::agents::{Agents, PATIENCE};
use super::ledger::Ledger;
use super::scene::{Scene, all_but, answers_are_right, quick, requests_are_on_record, rollouts};
use crate::common::{Program, Running};
use crate::preload::{CrashPoint, Side};

const CONCURRENCY: u64 = 4;

/// A sweep that takes a second at least.
fn slow() -> Scene {
    Scene::slow(20).with_its_own_load()
}

fn collect(scene: &Scene, agents: &Agents, options: &str) -> Program {
    let collect = super::scene::COLLECT;
    let program = scene.folder.rollstream(collect).args("--agent sim");
    let program = program.args(&format!("--concurrency {CONCURRENCY}"));
    program.args(&agents.options()).args(options)
}

/// One that was killed in the middle.
#[track_caller]
fn killed() -> Scene {
    let scene = slow();
    let killed = collect(&scene, &scene.agents, "").start();
    asked(&scene, 3);
    killed.signal("KILL");
    killed.end();
    scene
}

/// Another agent of the same kind, so that it is known who asked.
fn another(scene: &Scene) -> Agents {
    Agents::start(scene.config.clone())
}

#[track_caller]
fn asked(scene: &Scene, share: u64) {
    scene.agents.until("it runs", |agents| {
        agents.num_requests() >= rollouts() * share / 10
    });
}

/// Each rollout is there once, and each request of each of the agents has a row of its own.
#[track_caller]
fn is_whole(scene: &Scene, agents: &[&Agents]) -> Ledger {
    let ledger = scene.ledger();
    assert_eq!(ledger.rollouts.len(), all_but(0));
    answers_are_right(&scene.config, &ledger);
    let mut sent = BTreeSet::new();
    for agents in agents {
        requests_are_on_record(agents, &ledger);
        for request in agents.requests("sim") {
            let key = (request.task_index, request.rollout_index, request.attempt);
            assert!(sent.insert(key), "sent by both: {request:?}");
        }
    }
    scene.has_state("finished");
    ledger
}

#[test]
fn who_breaks_a_lock_waits_until_its_holder_has_stopped() {
    // One call never ends, so that the holder does not end by itself.
    let scene = Scene::new(SimConfig {
        fault_at: vec!["7:0:0=hang".parse().unwrap()],
        latency: Latency::Fixed(Duration::from_millis(50)),
        ..quick()
    });
    let scene = scene.with_its_own_load();
    let holder = collect(&scene, &scene.agents, "").start();
    asked(&scene, 3);
    let others = another(&scene);
    let program = collect(&scene, &others, "--resume --break-lock");
    program.run().succeeded();
    let ended = holder.end().exited_with(1);
    assert!(ended.stderr.contains("lock"), "{ended:#?}");

    is_whole(&scene, &[&scene.agents, &others]);
    let last = scene.agents.requests("sim").last().unwrap().arrived_at_us;
    let first = others.requests("sim").first().unwrap().arrived_at_us;
    assert!(last <= first, "both wrote for {} us", last - first);
    let most = rollouts() + CONCURRENCY;
    let sent = scene.agents.num_requests() + others.num_requests();
    assert!(sent <= most, "{sent} requests");
}

#[test]
fn of_two_that_resume_at_once_one_does_the_work() {
    let scene = killed();
    let others = another(&scene);
    let both = [&scene.agents, &others].map(|agents| collect(&scene, agents, "--resume").start());
    let ended = both.map(Running::end);
    assert!(
        ended.iter().any(|ended| ended.code == Some(0)),
        "{ended:#?}"
    );
    for ended in ended {
        // Who was refused says so.
        assert!(
            ended.code == Some(0) || ended.stderr.contains("--break-lock"),
            "{ended:#?}"
        );
    }
    is_whole(&scene, &[&scene.agents, &others]);
}

/// The state of a process, as `T` where it is stopped.
fn state(process: &Running) -> String {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    fields.split_whitespace().next().unwrap().to_owned()
}

#[track_caller]
fn until_it_is_stopped(process: &Running) {
    let deadline = Instant::now() + PATIENCE;
    while state(process) != "T" {
        assert!(Instant::now() < deadline, "never stopped");
        // Only spares the processor.
        sleep(Duration::from_millis(1));
    }
}

/// A process that has looked at a killed run and is stopped just before it takes the lock, while another resumes the
/// run with these options and `INT` after some requests, or to its end.
fn overtaken(interrupted: bool) {
    let scene = killed();

    let late = another(&scene);
    let program = collect(&scene, &late, "--resume");
    let log = scene.folder.path("changes.log");
    let before_the_lock = CrashPoint::first(Side::Before, "/lock").stopping();
    let program = before_the_lock.of(program, &scene.folder.path("run"), &log);
    let late_process = program.start();
    until_it_is_stopped(&late_process);

    let first = collect(&scene, &scene.agents, "--resume").start();
    if interrupted {
        asked(&scene, 6);
        first.signal("INT");
        first.end().exited_with(130);
    } else {
        first.end().succeeded();
    }
    let done = Ledger::read(&scene.folder.path("run")).rollouts.len() as u64;
    late_process.signal("CONT");
    late_process.end().succeeded();
    is_whole(&scene, &[&scene.agents, &late]);
    assert_eq!(late.num_requests(), rollouts() - done);
}

#[test]
fn a_process_that_takes_the_lock_late_knows_what_was_done_before() {
    overtaken(false);
}

#[test]
fn a_process_that_takes_the_lock_late_goes_on_with_the_numbers_of_attempts() {
    overtaken(true);
}
