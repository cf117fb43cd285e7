//! Parts that were cut so that they could be read become fewer when a sweep ends, whenever the process dies meanwhile.

use std::fs;
use std::path::Path;

use super::files::{below, name};
use super::ledger::{Ledger, parts};
use super::scene::{Scene, all_but};
use crate::common::Ended;
use crate::preload::{CrashPoint, Side};

const TABLES: [&str; 2] = ["rollouts", "attempts"];

/// Parts that are cut every few milliseconds.
const OPTIONS: &str = "--concurrency 4 --part-interval 5ms --partitions 2";

/// More parts than a sweep leaves that is not killed.
const MANY: usize = 8;

/// A sweep that is killed at a change of what takes the place of small parts, or that ends before; and its changes.
fn killed_at(point: CrashPoint) -> (Scene, Ended, Vec<String>) {
    let scene = Scene::slow(5).with_its_own_load();
    let log = scene.folder.path("changes.log");
    fs::write(&log, "").unwrap();
    let program = point.of(scene.collect(OPTIONS), &scene.folder.path("run"), &log);
    let ended = program.run();
    let changes = fs::read_to_string(&log).unwrap();
    let changes = changes
        .lines()
        .filter(|change| change.contains(point.matching));
    (scene, ended, changes.map(str::to_owned).collect())
}

fn count(run: &Path) -> [usize; 2] {
    TABLES.map(|table| parts(run, table).len())
}

#[track_caller]
fn few_are_left(scene: &Scene) {
    let run = scene.folder.path("run");
    let counts = count(&run);
    assert!(
        counts.iter().all(|parts| (1..=2).contains(parts)),
        "{counts:?}"
    );
    let files = below(&run);
    let staged = files
        .iter()
        .find(|path| path.to_string_lossy().contains("staging"));
    assert_eq!(staged, None);
    // Others than rollstream read the same.
    let ledger = scene.is_done_but_for(&[]);
    assert_eq!(ledger.rollouts.len(), all_but(0));
}

#[test]
fn small_parts_become_few_at_the_end() {
    let point = CrashPoint::first(Side::Before, "/compacted").nth(0);
    let (scene, ended, changes) = killed_at(point);
    let ended = ended.succeeded();
    assert!(!changes.is_empty(), "nothing was compacted");
    few_are_left(&scene);
    let run = scene.folder.path("run");
    for part in TABLES.iter().flat_map(|table| parts(&run, table)) {
        assert!(ended.stdout.contains(name(&part)), "{ended:#?}");
    }
    // What is said to be written is there.
    for line in ended.stdout.lines() {
        for word in line
            .split_whitespace()
            .filter(|word| word.ends_with(".parquet"))
        {
            assert!(scene.folder.has(word), "{word} is not there: {ended:#?}");
        }
    }
}

#[test]
fn a_kill_while_parts_are_replaced_neither_doubles_nor_loses_a_row() {
    let never = CrashPoint::first(Side::Before, "/compacted").nth(0);
    let (_, _, changes) = killed_at(never);
    let exchanges = changes.iter().filter(|change| change.starts_with("rename"));
    assert!(exchanges.count() >= 4, "{changes:#?}");
    let some = (1..=changes.len()).step_by(1 + changes.len() / 12);
    for number in some {
        let point = CrashPoint::first(Side::After, "/compacted").nth(number);
        let (scene, ended, changes) = killed_at(point);
        if ended.code.is_some() {
            // Fewer parts than the last time.
            few_are_left(&scene);
            continue;
        }
        println!("--- killed after {:?}", changes.last());
        let run = scene.folder.path("run");
        let ledger = Ledger::read(&run);
        assert_eq!(ledger.rollouts.len(), all_but(0));
        ledger.is_consistent();
        let status = scene.status();
        assert_eq!(status["total"]["done"], all_but(0));
        let asked = scene.agents.num_requests();
        scene.collect(OPTIONS).args("--resume").run().succeeded();
        assert_eq!(scene.agents.num_requests(), asked);
        scene.is_done_but_for(&[]);
        assert!(count(&run).iter().all(|parts| *parts <= MANY));
        assert!(!run.join(".rollstream-staging").exists());
    }
}
