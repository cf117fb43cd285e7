//! Sweeps in four partitions, whatever the environment says: limits hold for all of them together, a kill loses nothing,
//! and what is answered can be read while others are waited for.

use std::collections::BTreeSet;
use std::time::Duration;

use rollstream::sim::{Latency, SimConfig};

use super::ledger::parts;
use super::reader::look;
use super::scene::{FAULTY, Scene, all_but, quick, rollouts};

/// The partitions that files of the journal, or parts, are of.
fn partitions_of(names: impl IntoIterator<Item = String>) -> BTreeSet<String> {
    let partition = |name: &String| {
        name.split('-')
            .find(|part| part.starts_with('p'))
            .map(str::to_owned)
    };
    names
        .into_iter()
        .filter_map(|name| partition(&name))
        .collect()
}

fn parts_of(scene: &Scene) -> Vec<String> {
    let parts = parts(&scene.folder.path("run"), "rollouts");
    let names = parts
        .iter()
        .map(|part| part.file_name().unwrap().to_string_lossy().into_owned());
    names.collect()
}

#[test]
fn limits_hold_for_all_partitions_together() {
    let scene = Scene::new(SimConfig {
        latency: Latency::Fixed(Duration::from_millis(3)),
        ..quick()
    });
    let scene = scene.with_its_own_load();
    scene
        .collect("--partitions 4 --concurrency 7")
        .run()
        .succeeded();
    scene.is_done_but_for(&[]);
    assert!(scene.agents.counts("sim").max_in_flight <= 7);
    assert_eq!(partitions_of(parts_of(&scene)).len(), 4);
}

#[test]
fn fewer_calls_in_flight_than_partitions_are_enough() {
    for options in ["--concurrency 1", "--agent-concurrency sim=2"] {
        let scene = Scene::slow(0).with_its_own_load();
        scene
            .collect(&format!("--partitions 4 {options}"))
            .run()
            .succeeded();
        scene.is_done_but_for(&[]);
        assert!(scene.agents.counts("sim").max_in_flight <= 2, "{options}");
    }
}

#[test]
fn a_run_that_was_killed_goes_on_in_another_number_of_partitions() {
    let scene = Scene::slow(5);
    for (round, partitions) in [4, 1, 3].into_iter().enumerate() {
        let options = format!("--resume --concurrency 16 --partitions {partitions}");
        let running = scene.collect(&options).start();
        let share = rollouts() * (round as u64 + 1) / 5;
        scene
            .agents
            .until("it runs", |agents| agents.num_requests() >= share);
        running.signal("KILL");
        assert_eq!(running.end().code, None);
    }
    scene.collect("--resume --partitions 4").run().succeeded();
    let ledger = scene.is_done_but_for(&[]);
    let ends = ledger.ends(|row| row.outcome != "ok");
    let [("interrupted", None, false, _)] = ends[..] else {
        panic!("{ends:?}");
    };
    scene.has_state("finished");
}

#[test]
fn what_is_answered_can_be_read_though_others_are_waited_for() {
    let scene = Scene::with_faults_at(&["7=hang"]);
    let options = "--partitions 4 --concurrency 16 --part-interval 50ms --grace 1ms";
    let mut running = scene.collect(options).start();
    let run = scene.folder.path("run");
    // No row comes any more, and no part is nearly full.
    loop {
        assert!(running.is_running());
        let keys = look(&run).unwrap_or_default();
        if keys.len() == all_but(4) {
            assert!(keys.iter().all(|(task, _)| *task != FAULTY));
            break;
        }
    }
    running.signal("INT");
    running.end().exited_with(130);
    scene.is_done_but_for(&[FAULTY]);
}
