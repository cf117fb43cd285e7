//! A collector that is killed, and one whose last writes were torn.

use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use super::ledger::Ledger;
use super::load;
use super::scene::{Scene, all_but, answers_are_right, rollouts};

/// A sweep that was killed on its way.
fn killed() -> Scene {
    let scene = Scene::slow(5);
    let running = scene.collect("--concurrency 16").start();
    scene
        .agents
        .until("it runs", |agents| agents.num_requests() >= rollouts() / 2);
    running.signal("KILL");
    assert_eq!(running.end().code, None);
    scene.has_state("running");
    scene
}

/// The newest file of the journal that ends so.
fn newest(scene: &Scene, extension: &str) -> PathBuf {
    let journals = fs::read_dir(scene.folder.path("run/journal")).unwrap();
    let files = journals.flat_map(|journal| fs::read_dir(journal.unwrap().path()).unwrap());
    let files = files.map(|file| file.unwrap().path());
    let of_kind = files.filter(|path| path.extension().is_some_and(|end| end == extension));
    of_kind.max().unwrap()
}

fn cut(path: &PathBuf, bytes: u64) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length.saturating_sub(bytes)).unwrap();
}

#[test]
fn a_kill_loses_nothing_that_was_sent() {
    let scene = killed();
    let asked = scene.agents.num_requests();
    scene.collect("--resume").run().succeeded();
    let ledger = scene.is_done_but_for(&[]);
    // What was in flight is on record, and only that was asked again.
    let interrupted = ledger.ends(|row| row.outcome != "ok");
    let [("interrupted", None, false, cut_off)] = interrupted[..] else {
        panic!("{interrupted:?}");
    };
    // A dispatch is on record before the request arrives: many in flight are many on their way.
    let most = if load::is_raised() {
        asked + load::concurrency(16)
    } else {
        asked
    };
    assert!((1..=most as usize).contains(&cut_off), "{cut_off}");
    assert_eq!(ledger.attempts.len(), all_but(0) + cut_off);
    assert!(scene.agents.num_requests() <= rollouts() + cut_off as u64);
    for row in ledger.attempts.iter().filter(|row| row.outcome != "ok") {
        assert!(row.error.is_some() && row.known_at.is_none(), "{row:?}");
    }
    scene.has_state("finished");

    let before = scene.agents.num_requests();
    scene.collect("--resume").run().succeeded();
    assert_eq!(scene.agents.num_requests(), before);
}

#[test]
fn a_torn_tail_of_the_journal_is_asked_again() {
    let scene = killed();
    let segment = newest(&scene, "rows");
    cut(&segment, 100);
    scene.collect("--resume").run().succeeded();
    let ledger = scene.is_done_but_for(&[]);
    let interrupted = ledger.ends(|row| row.outcome == "interrupted");
    assert!(!interrupted.is_empty());
}

#[test]
fn a_journal_that_is_cut_off_in_its_head_is_asked_again() {
    let scene = killed();
    let segment = newest(&scene, "rows");
    OpenOptions::new()
        .write(true)
        .open(segment)
        .unwrap()
        .set_len(7)
        .unwrap();
    scene.collect("--resume").run().succeeded();
    let ledger = scene.is_done_but_for(&[]);
    let interrupted = ledger.ends(|row| row.outcome == "interrupted");
    // What one segment held, of as many as there are partitions.
    let least = if load::partitions().is_empty() {
        rollouts() / 2
    } else {
        1
    };
    assert!(interrupted[0].3 as u64 >= least, "{interrupted:?}");
}

#[test]
fn a_torn_tail_of_the_dispatches_does_not_keep_a_run_from_going_on() {
    let scene = killed();
    // A power cut; who is killed leaves whole records.
    cut(&newest(&scene, "dispatches"), 13);
    scene.collect("--resume").run().succeeded();
    let ledger = Ledger::read(&scene.folder.path("run"));
    ledger.is_consistent();
    answers_are_right(&scene.config, &ledger);
    assert_eq!(ledger.rollouts.len(), all_but(0));
}

#[test]
fn a_process_that_is_killed_before_it_sent_anything_leaves_nothing_in_the_way() {
    let scene = Scene::slow(0);
    for _ in 0..3 {
        let mut running = scene.collect("--resume").start();
        while !scene.folder.has("run/run.json") && running.is_running() {
            sleep(Duration::from_micros(200));
        }
        running.signal("KILL");
        running.end();
        if scene.folder.json("run/run.json")["state"] == "finished" {
            break;
        }
    }
    scene.collect("--resume").run().succeeded();
    scene.is_done_but_for(&[]);
}
