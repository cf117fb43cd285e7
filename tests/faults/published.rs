//! A part that readers have seen stays as it is, whatever is left of the journal that it was made of.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::files::{name, segments};
use super::ledger::{Ledger, Rollout, RolloutKey, parts};
use super::scene::{Scene, all_but, answers_are_right};
use crate::preload::{CrashPoint, Side};

const OPTIONS: &str = "--concurrency 8 --part-size 20KB";

/// Steps of making a part, at most.
const MOST_STEPS: usize = 12;

/// A run that was killed when its first part of `rollouts` was there, and that of `attempts` was not.
struct HalfPublished {
    scene: Scene,
    part: PathBuf,
    bytes: Vec<u8>,
    inode: u64,
    rollouts: BTreeMap<RolloutKey, Rollout>,
}

fn half_published() -> HalfPublished {
    for step in 1..=MOST_STEPS {
        let scene = Scene::slow(2).with_its_own_load();
        let run = scene.folder.path("run");
        let point = CrashPoint::first(Side::After, "/rollouts").nth(step);
        let log = scene.folder.path("changes.log");
        let ended = point.of(scene.collect(OPTIONS), &run, &log).run();
        assert_eq!(ended.code, None, "{ended:#?}");
        let attempts = parts(&run, "attempts");
        let is_half = |part: &&PathBuf| !attempts.iter().any(|other| name(other) == name(part));
        let published = parts(&run, "rollouts");
        let Some(part) = published.iter().find(is_half) else {
            continue;
        };
        return HalfPublished {
            part: part.clone(),
            bytes: fs::read(part).unwrap(),
            inode: fs::metadata(part).unwrap().ino(),
            rollouts: Ledger::read(&run).rollouts,
            scene,
        };
    }
    panic!("no step is between the two parts")
}

impl HalfPublished {
    fn journal(&self) -> PathBuf {
        self.scene.folder.path("run/journal")
    }

    /// The run is resumed; what was there is there still, and every rollout has its row.
    #[track_caller]
    fn is_kept(&self) {
        let scene = &self.scene;
        scene.collect(OPTIONS).args("--resume").run().succeeded();
        let ledger = Ledger::read(&scene.folder.path("run"));
        for (key, rollout) in &self.rollouts {
            assert_eq!(ledger.rollouts.get(key), Some(rollout), "{key:?}");
        }
        // It may have become part of a larger one.
        if self.part.exists() {
            assert!(
                fs::read(&self.part).unwrap() == self.bytes,
                "it was replaced"
            );
            assert_eq!(fs::metadata(&self.part).unwrap().ino(), self.inode);
        }
        assert_eq!(ledger.rollouts.len(), all_but(0));
        answers_are_right(&scene.config, &ledger);
        for ((task, rollout), row) in &ledger.rollouts {
            let key = (*task, *rollout, row.attempt);
            let rows = ledger
                .attempts
                .iter()
                .filter(|attempt| attempt.key() == key);
            let outcomes: Vec<&str> = rows.map(|attempt| attempt.outcome.as_str()).collect();
            assert_eq!(outcomes, ["ok"], "{key:?}");
        }
        scene.has_state("finished");
        let done = &scene.folder.json("run/run.json")["rollouts"]["done"];
        assert_eq!(*done, all_but(0));
    }

    /// What readers count before anybody resumes it.
    #[track_caller]
    fn is_counted(&self) {
        let done = self.scene.status()["total"]["done"].as_u64().unwrap();
        assert!(done >= self.rollouts.len() as u64, "{done}");
    }
}

fn cut(segment: &Path, share: u64) {
    let file = OpenOptions::new().write(true).open(segment).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length * share / 10).unwrap();
}

#[test]
fn a_part_whose_journal_is_there_is_completed() {
    let run = half_published();
    run.is_counted();
    run.is_kept();
    run.scene.is_done_but_for(&[]);
}

#[test]
fn a_part_whose_journal_was_lost_is_kept() {
    let run = half_published();
    fs::remove_dir_all(run.journal()).unwrap();
    run.is_counted();
    run.is_kept();
}

#[test]
fn a_part_is_not_replaced_by_a_shorter_copy_of_its_journal() {
    for share in [1, 5, 9] {
        let run = half_published();
        for segment in segments(&run.journal()) {
            cut(&segment, share);
        }
        run.is_counted();
        run.is_kept();
    }
}
