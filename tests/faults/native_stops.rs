//! Agents that the program runs itself, interrupted in the middle of an episode, or refused before the first.

use std::time::Duration;

use rollstream::sim::{Latency, SimConfig};
use serde_json::json;

use super::load::{concurrency, raised, tasks};
use super::native_scene::{Kind, NativeScene, REPEATS, faulty, servers};
use crate::common::{Folder, task};

fn slow(turns: u64) -> SimConfig {
    SimConfig {
        latency: Latency::Fixed(Duration::from_millis(20)),
        ..servers(turns)
    }
}

#[test]
fn calls_that_an_interrupt_cuts_off_are_on_record_and_nothing_is_lost() {
    for kind in [Kind::Responses, Kind::PerSample, Kind::Lockstep] {
        let rollouts = tasks(10, REPEATS) * REPEATS;
        let scene = NativeScene::new(kind, rollouts, slow(8));
        let options = raised("--resume --concurrency 12");
        for _ in 0..3 {
            // In the midst of an episode, and not only in its first call.
            let requests = scene.agents.num_server_requests() + concurrency(12) * 5 / 2;
            let running = scene.collect(&options).start();
            let agents = &scene.agents;
            agents.until("it runs", |agents| agents.num_server_requests() >= requests);
            running.signal("INT");
            running.until_it_says("stopping");
            running.signal("INT");
            running.end().exited_with(130);
            let (ledger, calls, _) = scene.is_on_record();
            let cut_off: Vec<_> = ledger
                .attempts
                .iter()
                .filter(|row| row.outcome == "interrupted")
                .collect();
            assert!(!cut_off.is_empty(), "{kind:?}");
            // What was answered before is there as it was, and names are known.
            let rows = cut_off.iter().filter_map(|row| calls.0.get(&row.key()));
            let rows: Vec<_> = rows.flatten().collect();
            assert!(rows.iter().any(|row| row.outcome == "ok"), "{kind:?}");
            assert!(
                rows.iter().any(|row| row.outcome == "interrupted"),
                "{kind:?}"
            );
            assert_eq!(scene.run_json()["rollouts"]["failed"], 0);
        }
        scene.end(scene.collect(&options).start()).succeeded();
        let (ledger, _, _) = scene.is_settled();
        assert_eq!(ledger.rollouts.len() as u64, rollouts, "{kind:?}");
        let ends = ledger.ends(|row| row.outcome != "ok");
        assert!(
            matches!(ends[..], [("interrupted", None, false, _)]),
            "{ends:?}"
        );
        // There is nothing more to do.
        let requests = scene.agents.num_server_requests();
        scene.collect("--resume").run().succeeded();
        assert_eq!(scene.agents.num_server_requests(), requests);
    }
}

#[test]
fn samples_that_leave_a_batch_take_no_calls_of_others_along() {
    let mut config = servers(6);
    config.slow_first_byte = Duration::from_millis(1600);
    config.model = faulty(&[("error_500", 0.01), ("slow_first_byte", 0.002)]);
    config.environment = faulty(&[("error_500", 0.01), ("slow_first_byte", 0.01)]);
    let scene = NativeScene::new(Kind::Lockstep, 160, config);
    let settings = scene.folder.read("native.toml");
    // An attempt that ends early is still in its batch, which is just about to send the next call.
    let settings = format!("{settings}group = 'all'\nrollout_timeout = '1200ms'\n");
    scene.folder.write("native.toml", &settings);
    // How long an attempt waits for its batch is what this is about: no more of them are in flight than here.
    let options = "--concurrency 30 --infra-budget 9";
    let ended = scene.collect(options).run();
    assert!(matches!(ended.code, Some(0 | 3)), "{ended:#?}");
    let (ledger, _, figures) = scene.is_settled();
    println!("{figures:?}, {:?}", ledger.ends(|_| true));
    assert!(!ledger.ends(|row| row.outcome == "timeout").is_empty());
    assert!(figures.interrupted > 0, "{figures:?}");
}

#[test]
fn a_task_name_that_nobody_serves_ends_the_run_before_it_begins() {
    for kind in [Kind::PerSample, Kind::Lockstep] {
        let mut scene = NativeScene::new(kind, 8, servers(2));
        let settings = scene.folder.read("native.toml");
        let known = task("What is 1 + 2?").with("task_name", "math");
        let unknown = task("What is 2 + 3?").with("task_name", "chess");
        scene.folder = Folder::with_tasks([known, unknown]);
        scene.folder.write("native.toml", &settings);
        let ended = scene.collect("").run();
        assert!(ended.code.is_some_and(|code| code != 0), "{ended:#?}");
        ended.complaining(&[
            "'chess'",
            "There are: math",
            "agent 'native'",
            "tasks.jsonl:2",
        ]);
        assert_eq!(scene.agents.num_server_requests(), 0);
        assert!(!scene.folder.has("run"), "{:?}", scene.folder.content());
    }
}

#[test]
fn a_row_with_nothing_but_a_message_log_is_a_task() {
    let mut scene = NativeScene::new(Kind::PerSample, 4, servers(3));
    let settings = scene.folder.read("native.toml");
    let row = json!({
        "message_log": [{"role": "user", "content": "What is 3 + 4?"}],
        "extra_env_info": {"expected_answer": 7},
        "task_name": "math",
    });
    scene.folder = Folder::new();
    scene.folder.write("tasks.jsonl", &format!("{row}\n"));
    scene.folder.write("native.toml", &settings);
    scene.collect("").run().succeeded();
    let (ledger, _, _) = scene.is_settled();
    assert_eq!(ledger.rollouts.len(), 4);
    for rollout in ledger.rollouts.values() {
        let answer: serde_json::Value = serde_json::from_str(&rollout.result).unwrap();
        assert_eq!(answer["message_log"][0]["content"], "What is 3 + 4?");
    }
}
