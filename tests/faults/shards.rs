//! Several processes that share the work on one run.

use std::collections::BTreeSet;

use super::ledger::Attempt;
use super::scene::{Scene, all_but, rollouts, tasks};

const SHARDS: [&str; 2] = ["1/2", "2/2"];

/// The tasks that each shard asked for, by the names of the parts.
fn tasks_of(scene: &Scene) -> [BTreeSet<i64>; 2] {
    let ledger = scene.ledger();
    ["s1of2", "s2of2"].map(|share| {
        let own = ledger.attempts.iter();
        let own = own.filter(|row| row.part.contains(share));
        own.map(|row| row.task).collect()
    })
}

#[track_caller]
fn is_shared_out(scene: &Scene) {
    let [first, second] = tasks_of(scene);
    assert!(first.is_disjoint(&second), "{first:?} {second:?}");
    assert!(first.len() >= 10 && second.len() >= 10);
    assert_eq!(first.len() + second.len(), tasks() as usize);
    scene.has_state("finished");
}

#[test]
fn two_processes_do_the_work_of_one_at_the_same_time() {
    let scene = Scene::slow(5);
    let running = SHARDS.map(|shard| {
        let options = format!("--concurrency 4 --shard {shard}");
        scene.collect(&options).start()
    });
    for process in running {
        process.end().succeeded();
    }
    let ledger = scene.is_done_but_for(&[]);
    assert_eq!(
        ledger.ends(|_| true),
        [("ok", Some(200), false, all_but(0))]
    );
    assert_eq!(scene.agents.num_requests(), rollouts());
    is_shared_out(&scene);
}

#[test]
fn one_of_two_processes_is_killed_and_gone_on_with_while_the_other_works() {
    let scene = Scene::slow(20);
    // No part is small beside so little: many small ones would become parts of the whole run, and of no shard.
    let options = |shard: &str| format!("--concurrency 2 --part-size 4KiB --shard {shard}");
    let other = scene.collect(&options("1/2")).start();
    let killed = scene.collect(&options("2/2")).start();
    scene.agents.until("both run", |agents| {
        agents.num_requests() >= rollouts() * 3 / 10
    });
    killed.signal("KILL");
    killed.end();
    let again = scene.collect(&options("2/2")).args("--resume").start();
    again.end().succeeded();
    other.end().succeeded();
    scene.is_done_but_for(&[]);
    is_shared_out(&scene);
}

#[test]
fn rollouts_that_one_process_recovers_for_all_are_not_sent_again_by_another() {
    let scene = Scene::slow(20);
    let options = "--concurrency 2 --disable-aggregation";
    let killed = scene.collect(options).start();
    scene
        .agents
        .until("it runs", |agents| agents.num_requests() >= rollouts() / 2);
    killed.signal("KILL");
    killed.end();
    for shard in SHARDS {
        let again = format!("{options} --resume --shard {shard}");
        scene.collect(&again).start().end().succeeded();
    }
    scene.is_done_but_for(&[]);
    let ledger = scene.ledger();
    let recovered = |row: &&Attempt| row.part.contains("s1of2-recovered");
    let recovered = ledger.attempts.iter().filter(recovered).count() as u64;
    assert!(recovered > rollouts() / 4, "{recovered}");
    // What was in flight, and what had just been answered.
    let requests = scene.agents.num_requests();
    assert!(requests <= rollouts() + 4, "{requests} of {}", rollouts());
}
