//! A run whose files were cut off by a loss of power: parts, `run.json`, the lock.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::files::{DAMAGED, below, name, rows};
use super::ledger::parts;
use super::scene::{REPEATS, Scene};
use super::spoiled::{Spoiled, did_not_panic, said};
use crate::common::{Ended, task};

const TASKS: u64 = 50;
const ROLLOUTS: u64 = TASKS * REPEATS;

/// A finished run of several parts.
fn finished() -> Scene {
    let scene = Scene::with_faults_at(&[]).with_its_own_load();
    scene
        .collect("--part-size 20KB --concurrency 8")
        .run()
        .succeeded();
    scene
}

fn copy<'a>(scene: &'a Scene, name: &str) -> Spoiled<'a> {
    Spoiled::new(
        &scene.folder,
        &scene.agents,
        &scene.config,
        TASKS,
        ROLLOUTS as usize,
        name,
    )
}

/// What is left of a file.
#[derive(Debug, Clone, Copy)]
enum Left {
    Nothing,
    Half,
    AllButTheLastByte,
}

const ALL: [Left; 3] = [Left::Nothing, Left::Half, Left::AllButTheLastByte];

fn cut(path: &Path, left: Left) -> Vec<u8> {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let length = file.metadata().unwrap().len();
    let length = match left {
        Left::Nothing => 0,
        Left::Half => length / 2,
        Left::AllButTheLastByte => length - 1,
    };
    file.set_len(length).unwrap();
    fs::read(path).unwrap()
}

fn first_part(run: &Path, table: &str) -> PathBuf {
    parts(run, table).remove(0)
}

/// The damaged part was put aside with what was left of it.
#[track_caller]
fn is_put_aside(copy: &Spoiled, table: &str, part: &Path, bytes: &[u8]) {
    let kept = below(&copy.path().join(DAMAGED));
    let is_it =
        |path: &PathBuf| path.to_string_lossy().contains(table) && fs::read(path).unwrap() == bytes;
    assert!(kept.iter().any(is_it), "{kept:?}");
    let is_whole = !part.exists() || fs::read(part).unwrap() != bytes;
    assert!(is_whole, "the damaged part is still there");
}

#[test]
fn a_part_of_rollouts_that_was_cut_off_is_asked_again() {
    let scene = finished();
    let all = parts(&scene.folder.path("run"), "rollouts").len();
    assert!(all > 1, "one part");
    for left in ALL {
        let copy = copy(&scene, &format!("run-{left:?}"));
        let part = first_part(&copy.path(), "rollouts");
        let lost = rows(&part);
        let bytes = cut(&part, left);

        let looks = copy.looks();
        said(&looks.status, &[name(&part)]);
        assert_eq!(
            looks.counts(),
            (ROLLOUTS - lost as u64, lost as u64),
            "{left:?}"
        );
        assert_eq!(copy.asked(), 0);

        let ended = copy.collect("--resume").run().succeeded();
        said(&ended, &[name(&part), DAMAGED]);
        assert_eq!(copy.asked(), lost, "{left:?}");
        let ledger = copy.is_whole();
        copy.requests_are_on_record(&ledger);
        is_put_aside(&copy, "rollouts", &part, &bytes);
    }
}

#[test]
fn a_part_of_attempts_that_was_cut_off_costs_no_rollout() {
    let scene = finished();
    for left in ALL {
        let copy = copy(&scene, &format!("run-{left:?}"));
        let part = first_part(&copy.path(), "attempts");
        let bytes = cut(&part, left);

        let looks = copy.looks();
        said(&looks.status, &[name(&part)]);
        assert_eq!(looks.read(), ROLLOUTS);

        let ended = copy.collect("--resume").run().succeeded();
        said(&ended, &[name(&part), DAMAGED]);
        assert_eq!(copy.asked(), 0, "{left:?}");
        copy.is_whole();
        is_put_aside(&copy, "attempts", &part, &bytes);
    }
}

#[test]
fn tasks_that_were_cut_off_are_written_again() {
    let scene = finished();
    for left in ALL {
        let copy = copy(&scene, &format!("run-{left:?}"));
        let part = first_part(&copy.path(), "tasks");
        let bytes = cut(&part, left);

        let looks = copy.looks();
        said(&looks.status, &[name(&part)]);
        let ended = copy.collect("--resume").run().succeeded();
        said(&ended, &[name(&part), DAMAGED]);
        assert_eq!(copy.asked(), 0, "{left:?}");
        copy.is_whole();
        let tasks = parts(&copy.path(), "tasks");
        let count = |part: &PathBuf| scene.folder.parquet(part.to_str().unwrap()).len() as u64;
        assert_eq!(tasks.iter().map(count).sum::<u64>(), TASKS);
        is_put_aside(&copy, "tasks", &part, &bytes);
    }
}

/// Removes `run.json`, or what is behind its half, or all that is in it.
fn without_record(copy: &Spoiled, left: Option<Left>) {
    let record = copy.path().join("run.json");
    match left {
        Some(left) => drop(cut(&record, left)),
        None => fs::remove_file(record).unwrap(),
    }
}

const RECORDS: [Option<Left>; 3] = [None, Some(Left::Nothing), Some(Left::Half)];

#[track_caller]
fn is_refused(ended: &Ended, parts: &[&str]) {
    did_not_panic(ended);
    assert!(!matches!(ended.code, Some(0 | 3)), "{ended:#?}");
    said(ended, parts);
}

#[test]
fn a_run_without_its_record_is_not_begun_anew_unasked() {
    let scene = finished();
    for left in RECORDS {
        let copy = copy(&scene, &format!("run-{left:?}").replace(['(', ')'], ""));
        without_record(&copy, left);
        let before = below(&copy.path());
        // As it was, and with other tasks.
        is_refused(&copy.collect("").run(), &["--overwrite"]);
        scene
            .folder
            .tasks("others.jsonl", [task("What is it?").answered_by(1)]);
        let others = copy.collect("--input others.jsonl").run();
        is_refused(&others, &["--overwrite"]);
        assert_eq!(copy.asked(), 0, "{left:?}");
        assert_eq!(below(&copy.path()), before, "{left:?}");
        let status = format!("status {}", name(&copy.path()));
        let status = scene.folder.rollstream(&status).run();
        is_refused(&status, &["run.json"]);
    }
}

/// The record is made anew, or there is a way out; answers that are there are not asked for again.
#[test]
fn a_run_without_its_record_is_resumed_without_asking_twice() {
    let scene = finished();
    for left in RECORDS {
        let copy = copy(&scene, &format!("run-{left:?}").replace(['(', ')'], ""));
        without_record(&copy, left);
        let ended = copy.collect("--resume").run();
        assert_eq!(copy.asked(), 0, "{left:?}");
        said(&ended, &["run.json"]);
        if ended.code == Some(0) {
            let ledger = copy.is_whole();
            copy.requests_are_on_record(&ledger);
        } else {
            is_refused(&ended, &["--overwrite"]);
        }
    }
}

#[test]
fn a_run_without_its_record_can_be_replaced() {
    let scene = finished();
    for left in RECORDS {
        let copy = copy(&scene, &format!("run-{left:?}").replace(['(', ')'], ""));
        without_record(&copy, left);
        copy.collect("--overwrite").run().succeeded();
        assert_eq!(copy.asked() as u64, ROLLOUTS, "{left:?}");
        copy.is_whole();
    }
}

/// A run that was killed, and whose lock is there and empty.
fn killed_with_an_empty_lock() -> (Scene, PathBuf) {
    let scene = Scene::slow(5).with_its_own_load();
    let running = scene.collect("--concurrency 8").start();
    scene
        .agents
        .until("it runs", |agents| agents.num_requests() >= ROLLOUTS / 2);
    running.signal("KILL");
    running.end();
    let locks = below(&scene.folder.path("run/lock"));
    let [lock] = &locks[..] else {
        panic!("{locks:?}");
    };
    cut(lock, Left::Nothing);
    let lock = lock.clone();
    (scene, lock)
}

#[test]
fn an_empty_lock_is_taken_over_after_its_lease() {
    let (scene, lock) = killed_with_an_empty_lock();
    let lock = OpenOptions::new().write(true).open(lock).unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    lock.set_modified(long_ago).unwrap();
    scene.collect("--resume").run().succeeded();
    scene.is_done_but_for(&[]);
}

#[test]
fn an_empty_lock_can_be_broken() {
    let (scene, lock) = killed_with_an_empty_lock();
    // Nearly over, and not yet.
    let lock = OpenOptions::new().write(true).open(lock).unwrap();
    let before = SystemTime::now() - Duration::from_secs(55);
    lock.set_modified(before).unwrap();
    let status = scene.folder.rollstream("status run --json").run();
    did_not_panic(&status);
    status.succeeded();
    let program = scene.collect("--resume --break-lock");
    program.run().succeeded();
    scene.is_done_but_for(&[]);
}
