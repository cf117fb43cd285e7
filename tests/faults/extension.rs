//! A run that gets more work, and one that must not be changed.

use std::collections::BTreeMap;

use super::ledger::{Ledger, Rollout, RolloutKey};
use super::load;
use super::scene::{COLLECT, Scene, all_but, rollouts, tasks};
use crate::common::{Program, sums, task};

fn finished() -> (Scene, BTreeMap<RolloutKey, Rollout>) {
    let scene = Scene::with_faults_at(&[]);
    scene.collect("").run().succeeded();
    let rollouts = scene.is_done_but_for(&[]).rollouts;
    (scene, rollouts)
}

/// What was there is there still, and with it so many rollouts in all, each asked for once.
#[track_caller]
fn has_grown_to(rollouts: usize, scene: &Scene, before: &BTreeMap<RolloutKey, Rollout>) {
    let ledger = Ledger::read(&scene.folder.path("run"));
    ledger.is_consistent();
    assert_eq!(ledger.rollouts.len(), rollouts);
    assert!(before.iter().all(|(key, row)| ledger.rollouts[key] == *row));
    assert_eq!(scene.agents.num_requests(), rollouts as u64);
    scene.answers_are_right(&ledger);
    scene.has_state("finished");
    let counts = &scene.folder.json("run/run.json")["rollouts"];
    assert_eq!(counts["planned"], rollouts);
    assert_eq!(counts["done"], rollouts);
}

fn with_repeats(scene: &Scene, repeats: u64) -> Program {
    let collect = COLLECT.replace("--num-repeats 4", &format!("--num-repeats {repeats}"));
    let program = scene
        .folder
        .rollstream(&collect)
        .args("--agent sim --resume");
    program
        .args(&scene.agents.options())
        .args(&load::raised(""))
        .args(&load::partitions())
}

#[test]
fn more_rollouts_per_task() {
    let (scene, before) = finished();
    let refused = with_repeats(&scene, 6).run();
    assert!(!matches!(refused.code, Some(0 | 3)), "{refused:#?}");
    refused.complaining(&["num_repeats"]);
    has_grown_to(all_but(0), &scene, &before);
    with_repeats(&scene, 6).args("--extend").run().succeeded();
    has_grown_to(6 * tasks() as usize, &scene, &before);
    let refused = with_repeats(&scene, 4).args("--extend").run();
    assert!(!matches!(refused.code, Some(0 | 3)), "{refused:#?}");
    has_grown_to(6 * tasks() as usize, &scene, &before);
}

#[test]
fn more_tasks() {
    let (scene, before) = finished();
    scene.folder.tasks("tasks.jsonl", sums(tasks() + 10));
    let refused = scene.collect("--resume").run();
    assert!(!matches!(refused.code, Some(0 | 3)), "{refused:#?}");
    assert_eq!(scene.agents.num_requests(), rollouts());
    scene.collect("--resume --extend").run().succeeded();
    has_grown_to(all_but(0) + 40, &scene, &before);
}

#[test]
fn a_task_that_has_changed_is_refused_and_named() {
    let (scene, before) = finished();
    let mut changed = sums(tasks() + 10);
    changed[3] = task("What is it?").answered_by(1);
    scene.folder.tasks("tasks.jsonl", changed);
    let refused = scene.collect("--resume --extend").run();
    assert!(!matches!(refused.code, Some(0 | 3)), "{refused:#?}");
    refused.complaining(&["tasks.jsonl", "line 4"]);
    has_grown_to(all_but(0), &scene, &before);
}
