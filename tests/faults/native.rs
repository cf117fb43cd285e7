//! Agents that the program runs itself: whatever models, tools and environments do, and whenever the collector is
//! killed, every rollout is settled once, and every request has its row.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use arrow::array::{Array, AsArray};
use arrow::datatypes::Int64Type;
use rollstream::sim::{Draws, SimConfig};

use super::calls::CallRow;
use super::ledger::{Ledger, batches, column, integers, parts};
use super::load::tasks;
use super::native_scene::{Kind, NativeScene, REPEATS, faulty, servers};

/// How many rollouts of 20 turns are run, where the environment says so; without it as many as the [load](super::load)
/// needs.
const ROLLOUTS: &str = "ROLLSTREAM_TEST_NATIVE_ROLLOUTS";

/// So many rollouts, or more under load.
fn at_least(usual: u64) -> u64 {
    tasks(usual / REPEATS, REPEATS) * REPEATS
}

const MODEL_FAULTS: [(&str, f64); 7] = [
    ("error_500", 0.02),
    ("rate_limited_429", 0.0005),
    ("rate_limited_reset", 0.03),
    ("reset", 0.02),
    ("fin", 0.01),
    ("truncated_body", 0.01),
    ("not_json", 0.003),
];

#[test]
fn every_call_of_a_tool_calling_agent_is_on_record_whatever_fails() {
    let rollouts = std::env::var(ROLLOUTS).ok();
    let rollouts: u64 = rollouts.map_or_else(|| at_least(120), |text| text.parse().unwrap());
    let tools = [
        ("error_500", 0.04),
        ("not_json", 0.04),
        ("bad_request_400", 0.02),
        ("reset", 0.003),
        ("missing_reward", 0.05),
        ("failure_class", 0.05),
    ];
    let scene = NativeScene::new(
        Kind::Responses,
        rollouts,
        SimConfig {
            model: faulty(&MODEL_FAULTS),
            tools: faulty(&tools),
            ..servers(20)
        },
    );
    let began = Instant::now();
    let most = rollouts as usize * 42 / 12;
    scene.collect_with_kills(10, most, &mut Draws::keyed(1, &[rollouts]));
    let (ledger, calls, figures) = scene.is_settled();
    println!(
        "{rollouts} rollouts in {:?}: {} done, {} attempts, {figures:?}, {:?}",
        began.elapsed(),
        ledger.rollouts.len(),
        ledger.attempts.len(),
        ledger.ends(|_| true)
    );
    assert_eq!(figures.rows, figures.requests + figures.unseen);
    assert!(figures.interrupted > 0 && figures.requests as u64 > rollouts * 40);
    // Tools that fail are what the model sees; the attempt goes on.
    let is_failed_tool = |call: &CallRow| call.kind == "tool" && call.http_status == Some(500);
    let survived = ledger.rollouts.iter().filter(|((task, rollout), row)| {
        calls.0[&(*task, *rollout, row.attempt)]
            .iter()
            .any(is_failed_tool)
    });
    assert!(survived.count() > 0);
    for ((task, rollout), row) in &ledger.rollouts {
        let of_rollout = calls.0[&(*task, *rollout, row.attempt)].iter();
        assert_eq!(of_rollout.map(|call| call.turn).max(), Some(21));
    }
}

#[test]
fn every_call_of_an_agent_of_gymnasium_is_on_record_whatever_fails() {
    let rollouts = at_least(80);
    let scene = NativeScene::new(
        Kind::Gymnasium,
        rollouts,
        SimConfig {
            model: faulty(&MODEL_FAULTS),
            gymnasium: faulty(&[("error_500", 0.02), ("reset", 0.02), ("not_json", 0.005)]),
            ..servers(6)
        },
    );
    let most = rollouts as usize * 5 / 2;
    scene.collect_with_kills(4, most, &mut Draws::keyed(2, &[]));
    let (_, _, figures) = scene.is_settled();
    assert!(figures.interrupted > 0, "{figures:?}");
}

/// Faults of a model and an environment, and kills; then the groups are whole.
fn multi_turn(kind: Kind, environment: &[(&str, f64)]) {
    let rollouts = at_least(120);
    let scene = NativeScene::new(
        kind,
        rollouts,
        SimConfig {
            model: faulty(&MODEL_FAULTS),
            environment: faulty(environment),
            ..servers(6)
        },
    );
    scene.collect_with_kills(6, rollouts as usize, &mut Draws::keyed(3, &[]));
    let (ledger, calls, figures) = scene.is_settled();
    println!("{kind:?}: {figures:?}, {:?}", ledger.ends(|_| true));
    assert!(figures.interrupted > 0, "{figures:?}");
    let batched = calls.0.values().flatten();
    let batched = batched.filter(|turn| turn.kind == "step" && turn.request_bytes == Some(0));
    assert_eq!(batched.count() > 0, kind == Kind::Lockstep);
    groups_are_whole(&scene, &ledger);
}

/// Every prompt is there once, with all completions that landed.
fn groups_are_whole(scene: &NativeScene, ledger: &Ledger) {
    let mut groups = BTreeMap::new();
    for part in parts(&scene.folder.path("run"), "groups") {
        for batch in batches(&part, &[]) {
            let planned = integers(&batch, "num_rollouts");
            let completions = column(&batch, "completions").as_list::<i32>();
            for (row, task) in integers(&batch, "task_index").into_iter().enumerate() {
                let completions = completions.value(row);
                let completions = completions.as_struct();
                let log = completions.column_by_name("message_log").unwrap();
                for log in log.as_list::<i32>().iter().flatten() {
                    assert!(log.len() >= 3, "task {task}");
                }
                let integers = |name: &str| {
                    let column = completions.column_by_name(name).unwrap();
                    column.as_primitive::<Int64Type>().values().to_vec()
                };
                let of_group = integers("rollout_index").into_iter();
                let of_group: Vec<(i64, i64)> = of_group.zip(integers("attempt")).collect();
                assert_eq!(planned[row], REPEATS as i64);
                let twice = groups.insert(task, of_group);
                assert!(twice.is_none(), "task {task} is there twice");
            }
        }
    }
    let mut expected: BTreeMap<i64, Vec<(i64, i64)>> = BTreeMap::new();
    for ((task, rollout), row) in &ledger.rollouts {
        let group = expected.entry(*task).or_default();
        group.push((*rollout, row.attempt));
    }
    assert_eq!(groups, expected);
    let whole: BTreeSet<usize> = groups.values().map(Vec::len).collect();
    assert!(whole.contains(&(REPEATS as usize)), "{whole:?}");
}

#[test]
fn every_call_of_a_multi_turn_agent_is_on_record_whatever_fails() {
    let environment = [("error_500", 0.03), ("reset", 0.02), ("not_json", 0.005)];
    multi_turn(Kind::PerSample, &environment);
}

#[test]
fn every_call_of_samples_in_lockstep_is_on_record_whatever_fails() {
    let environment = [
        ("error_500", 0.02),
        ("reset", 0.01),
        ("missing_reward", 0.002),
    ];
    multi_turn(Kind::Lockstep, &environment);
}
