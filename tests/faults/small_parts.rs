//! Small parts become few when a sweep ends, and whenever the process dies meanwhile, every row is there once.

use std::fs;
use std::path::Path;

use super::files::{below, name};
use super::ledger::parts;
use super::reader::look;
use super::scene::{REPEATS, Scene};
use super::spoiled::Spoiled;
use crate::common::{Ended, Program, sums};
use crate::preload::{CrashPoint, Side};

const TABLES: [&str; 2] = ["rollouts", "attempts"];

/// Sweeps that each leave a part of each table; with one more these are worth replacing.
const FEW: u64 = 32;

const TASKS: u64 = 2 * (FEW + 1);

fn collect(scene: &Scene, run: &str) -> Program {
    let collect = format!(
        "collect -i tasks.jsonl --num-repeats {REPEATS} -o {run} --agent sim --disable-aggregation --resume --extend"
    );
    let program = scene.folder.rollstream(&collect);
    program.args(&scene.agents.options())
}

fn count(run: &Path) -> [usize; 2] {
    TABLES.map(|table| parts(run, table).len())
}

/// A run that was extended again and again, and gets two more tasks.
fn extended() -> Scene {
    let scene = Scene::with_faults_at(&[]).with_its_own_load();
    for sweep in 1..=FEW {
        scene.folder.tasks("tasks.jsonl", sums(2 * sweep));
        collect(&scene, "run").run().succeeded();
    }
    assert_eq!(count(&scene.folder.path("run")), [FEW as usize; 2]);
    scene.folder.tasks("tasks.jsonl", sums(TASKS));
    scene
}

fn copy<'a>(scene: &'a Scene, name: &str) -> Spoiled<'a> {
    let requests = (FEW * 2 * REPEATS) as usize;
    let (folder, agents) = (&scene.folder, &scene.agents);
    Spoiled::new(folder, agents, &scene.config, TASKS, requests, name)
}

/// Extends a copy up to a change of what takes the place of small parts; gives all such changes.
fn collect_to(scene: &Scene, copy: &Spoiled, point: CrashPoint) -> (Ended, Vec<String>) {
    let log = scene.folder.path("changes.log");
    fs::write(&log, "").unwrap();
    let program = collect(scene, name(&copy.path()));
    let ended = point.of(program, &copy.path(), &log).run();
    let changes = fs::read_to_string(&log).unwrap();
    (ended, changes.lines().map(str::to_owned).collect())
}

fn point(number: usize) -> CrashPoint {
    CrashPoint::first(Side::After, "/compacted").nth(number)
}

/// All rows are in one part of each table, and nothing else is left.
#[track_caller]
fn is_compacted(copy: &Spoiled) {
    assert_eq!(count(&copy.path()), [1, 1]);
    let ledger = copy.is_whole();
    copy.requests_are_on_record(&ledger);
    let files = below(&copy.path());
    let staged = files
        .iter()
        .find(|path| path.to_string_lossy().contains("staging"));
    assert_eq!(staged, None);
}

#[test]
fn small_parts_become_few_at_the_end() {
    let scene = extended();
    let copy = copy(&scene, "copy");
    let ended = collect(&scene, "copy").arg("--json").run().succeeded();
    is_compacted(&copy);
    let run = copy.path();
    for part in TABLES.iter().flat_map(|table| parts(&run, table)) {
        assert!(ended.stdout.contains(name(&part)), "{ended:#?}");
    }
    // What is said to be written is there.
    let words = ended.stdout.split('"');
    for part in words.filter(|word| word.ends_with(".parquet")) {
        assert!(scene.folder.has(part), "{part} is not there: {ended:#?}");
    }
}

#[test]
fn a_kill_while_parts_are_replaced_neither_doubles_nor_loses_a_row() {
    let scene = extended();
    let whole = copy(&scene, "whole");
    let (ended, changes) = collect_to(&scene, &whole, point(0));
    ended.succeeded();
    let exchanges = changes.iter().filter(|change| change.starts_with("rename"));
    assert!(exchanges.count() >= 4, "{changes:#?}");
    for number in (1..=changes.len()).step_by(2) {
        let copy = copy(&scene, &format!("copy-{number}"));
        let (ended, changes) = collect_to(&scene, &copy, point(number));
        println!("--- killed after {:?}", changes.last());
        assert_eq!(ended.code, None, "{ended:#?}");
        let seen = look(&copy.path()).unwrap();
        assert_eq!(seen.len() as u64, TASKS * REPEATS);
        let looks = copy.looks();
        assert_eq!(
            (looks.counts(), looks.read()),
            ((TASKS * REPEATS, 0), TASKS * REPEATS)
        );
        collect(&scene, name(&copy.path())).run().succeeded();
        is_compacted(&copy);
    }
}
