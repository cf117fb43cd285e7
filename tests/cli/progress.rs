//! What is shown while a sweep is under way.

use std::time::Duration;

use rollstream::sim::{Latency, SimConfig};
use serde_json::Value;

use crate::common::{Folder, Simulated, instant, sums};

fn never() -> Simulated {
    Simulated::start(SimConfig {
        latency: Latency::Fixed(Duration::from_secs(3600)),
        ..instant(["sim"])
    })
}

#[test]
fn without_a_terminal_there_is_a_line_every_few_seconds_on_stderr() {
    let folder = Folder::with_tasks(sums(3));
    let command = folder.rollstream("collect -i tasks.jsonl --agent sim --concurrency 2 -o run");
    let sim = never();
    let running = command.args(&sim.options()).start();
    let line = running.until_it_says("2 in flight");
    assert_eq!(
        line.trim_end(),
        "0/3 rollouts, 0.0/s, ETA -, 2 in flight, 0 failed | sim: 3 left, mean reward -"
    );
    running.signal("INT");
    running.until_it_says("stopping");
    running.signal("INT");
    let ended = running.end().exited_with(130);
    assert!(!ended.stdout.contains("0/3"), "{}", ended.stdout);
}

#[test]
fn json_progress_comes_as_events_on_stdout_and_nothing_else_does() {
    let folder = Folder::with_tasks(sums(3));
    let sim = never();
    let command =
        folder.rollstream("collect -i tasks.jsonl --agent sim --concurrency 2 -o run --json");
    let running = command.args(&sim.options()).start();
    let event: Value = serde_json::from_str(&running.until_it_prints("\"in_flight\":2")).unwrap();
    assert_eq!(event["event"], "progress");
    assert_eq!(
        (&event["planned"], &event["pending"], &event["in_flight"]),
        (&3.into(), &3.into(), &2.into())
    );
    assert_eq!(event["agents"]["sim"]["pending"], 3);
    running.signal("INT");
    running.until_it_says("stopping");
    running.signal("INT");
    let ended = running.end().exited_with(130);
    let events: Vec<Value> = ended
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (last, before) = events.split_last().unwrap();
    assert!(before.iter().all(|event| event["event"] == "progress"));
    assert_eq!(
        (&last["event"], &last["state"]),
        (&"finished".into(), &"interrupted".into())
    );
}
