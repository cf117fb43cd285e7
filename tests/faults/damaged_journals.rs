//! A journal whose bytes were changed after the process was killed.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::files::{below, is_kept, largest_segment, name};
use super::load::is_full;
use super::scene::{REPEATS, Scene};
use super::spoiled::{Spoiled, did_not_panic, said};

const TASKS: u64 = 50;

/// Damage by which the head of a file may become unreadable, and with it all of the file.
const HEAD: usize = 64;

/// Rollouts that one damaged place may cost: those of a batch, and those that were in flight. A busy disk makes batches
/// larger, but never one of most of the journal.
const MOST_LOST: usize = (TASKS * REPEATS / 4) as usize;

/// What happens to the bytes from an offset on.
#[derive(Debug, Clone, Copy)]
enum Damage {
    Flipped,
    /// A page that the disk never wrote.
    Zeroed,
}

impl Damage {
    fn length(self) -> usize {
        match self {
            Self::Flipped => 1,
            Self::Zeroed => 512,
        }
    }

    fn to(self, bytes: &mut [u8], offset: usize) {
        let end = bytes.len().min(offset + self.length());
        for byte in &mut bytes[offset..end] {
            *byte = match self {
                Self::Flipped => !*byte,
                Self::Zeroed => 0,
            };
        }
    }
}

/// A sweep with two calls in flight, so that its journal has many batches, killed when most is answered.
fn killed() -> Scene {
    let scene = Scene::slow(2).with_its_own_load();
    let running = scene.collect("--concurrency 2").start();
    scene.agents.until("most is answered", |agents| {
        agents.num_requests() >= TASKS * REPEATS * 7 / 10
    });
    running.signal("KILL");
    assert_eq!(running.end().code, None);
    scene
}

/// Damages a copy at each of these offsets, and resumes it.
#[track_caller]
fn is_survived(damage: Damage, offsets: impl Fn(usize) -> Vec<usize>) {
    let scene = killed();
    let requests = scene.agents.requests("sim").len();
    let length = fs::metadata(largest_segment(&scene.folder.path("run")))
        .unwrap()
        .len() as usize;
    let mut failures = Vec::new();
    let offsets = offsets(length);
    for offset in &offsets {
        let copy = format!("run-{offset}");
        let copy = Spoiled::new(
            &scene.folder,
            &scene.agents,
            &scene.config,
            TASKS,
            requests,
            &copy,
        );
        println!("--- {damage:?} at {offset} of {length}");
        if catch_unwind(AssertUnwindSafe(|| is_resumed(&copy, damage, *offset))).is_err() {
            failures.push(*offset);
        }
    }
    assert!(failures.is_empty(), "at {failures:?} of {offsets:?}");
}

#[track_caller]
fn is_resumed(copy: &Spoiled, damage: Damage, offset: usize) {
    let segment = largest_segment(&copy.path());
    let before = fs::read(&segment).unwrap();
    // A page may hold zeros only: then the next one that does not is damaged.
    let bytes = (offset..before.len()).step_by(512).find_map(|offset| {
        let mut bytes = before.clone();
        damage.to(&mut bytes, offset);
        (bytes != before).then_some(bytes)
    });
    let bytes = bytes.unwrap();
    fs::write(&segment, &bytes).unwrap();

    let looks = copy.looks();
    assert_eq!(looks.counts().0, looks.read());
    let ended = copy.collect("--resume").run();
    did_not_panic(&ended);
    let ended = ended.succeeded();
    let ledger = copy.is_whole();
    ledger.is_consistent();
    copy.requests_are_on_record(&ledger);

    said(&ended, &[name(&segment), "damage"]);
    let said_offset = ["offset", "byte"]
        .iter()
        .any(|word| ended.stderr.contains(word));
    assert!(said_offset, "{ended:#?}");
    let files = below(&copy.path().join("journal"));
    let kept = files.iter().filter(|path| is_kept(path));
    let kept: Vec<Vec<u8>> = kept.map(|path| fs::read(path).unwrap()).collect();
    assert!(kept.contains(&bytes), "it is not kept, but {files:?}");
    let lost = ledger
        .attempts
        .iter()
        .filter(|row| row.outcome == "interrupted");
    let lost = lost.count();
    assert!(offset < HEAD || lost <= MOST_LOST, "{lost} are asked again");
}

/// So many offsets from `first` on, evenly spread over what is not the tail: of that nobody can say that it was whole.
fn spread(first: usize, length: usize, some: usize, all: usize) -> Vec<usize> {
    let number = if is_full() { all } else { some };
    let last = length * 8 / 10;
    (0..number)
        .map(|n| first + (last - first) * n / number)
        .collect()
}

#[test]
fn a_changed_byte_costs_one_batch() {
    is_survived(Damage::Flipped, |length| spread(HEAD, length, 6, 24));
}

#[test]
fn a_changed_byte_in_the_head_of_a_journal_is_survived() {
    is_survived(Damage::Flipped, |_| {
        if is_full() {
            (0..HEAD)
                .step_by(4)
                .chain((HEAD..2048).step_by(64))
                .collect()
        } else {
            vec![0, 5, 9, 23, 300]
        }
    });
}

#[test]
fn a_zeroed_page_costs_its_batches() {
    is_survived(Damage::Zeroed, |length| spread(1024, length, 5, 20));
}
