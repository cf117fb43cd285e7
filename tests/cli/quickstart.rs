//! A sweep with the simulated agent, and the ways in which it reports.

use std::process::Command;

use serde_json::Value;

use crate::common::{Folder, sums};

const EXAMPLE_TASKS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/data/example_tasks.jsonl"
);

#[test]
fn the_first_command_ends_with_its_verdict_a_table_and_what_to_do_next() {
    let folder = Folder::new();
    let command =
        folder.rollstream("collect --agent sim --num-repeats 4 --output runs/first --input");
    let ended = command.arg(EXAMPLE_TASKS).run().succeeded();

    let mut lines = ended.stdout.lines();
    let header = lines.find(|line| line.starts_with(" agent ")).unwrap();
    let header: Vec<&str> = header.split_whitespace().collect();
    assert_eq!(
        header,
        [
            "agent", "metric", "mean", "stderr", "pass@k", "pass^k", "count", "std", "min",
            "median", "max"
        ]
    );
    let reward: Vec<&str> = lines
        .find(|line| line.contains(" reward "))
        .unwrap()
        .split_whitespace()
        .collect();
    let mean = folder.sql("runs/first", "select avg(reward) from rollouts");
    let mean: f64 = mean[0].parse().unwrap();
    assert!((0.1..0.9).contains(&mean), "a mean of {mean} shows nothing");
    assert_eq!(
        [reward[0], reward[2], reward[8]],
        ["sim", &format!("{mean:.4}"), "168"]
    );
    assert!(
        ended
            .stdout
            .contains("168 of 168 rollouts done, 0 failed, 0 pending"),
        "{}",
        ended.stdout
    );
    let progress: Vec<&str> = ended.stderr.lines().collect();
    assert!(
        matches!(progress[..], [.., last] if last.starts_with("168/168 rollouts, ")),
        "{progress:?}"
    );

    for part in [
        "results: runs/first\n",
        "rollstream show runs/first --worst",
        "rollstream compare runs/first",
    ] {
        assert!(ended.stdout.contains(part), "{part}: {}", ended.stdout);
    }
    for file in ["aggregate_metrics.json", "metrics", "rollouts", "run.json"] {
        assert!(folder.has(&format!("runs/first/{file}")), "{file}");
    }
    assert!(folder.json("runs/first/aggregate_metrics.json").is_array());
    assert!(!folder.has("runs/first/journal"));
    assert_eq!(std::fs::read_dir(folder.path("tmp")).unwrap().count(), 0);
}

#[test]
fn the_same_command_has_the_same_answers() {
    let folder = Folder::with_tasks(sums(5));
    let rewards = |run: &str| {
        folder
            .rollstream("collect -i tasks.jsonl --agent sim --num-repeats 8")
            .args("-o")
            .arg(run)
            .run()
            .succeeded();
        folder.sql(
            run,
            "select task_index, rollout_index, reward, output_tokens from rollouts order by 1, 2",
        )
    };
    let first = rewards("first");
    assert_eq!(first.len(), 40);
    assert_eq!(first, rewards("second"));
}

#[test]
fn quiet_says_nothing_at_all() {
    let folder = Folder::with_tasks(sums(3));
    for options in ["--quiet -o a", "-q --json -o b"] {
        let command = folder.rollstream("collect -i tasks.jsonl --agent sim");
        let ended = command.args(options).run().succeeded();
        assert_eq!(
            (ended.stdout.as_str(), ended.stderr.as_str()),
            ("", ""),
            "{options}"
        );
    }
    assert_eq!(
        folder.sql(
            "a b",
            "select run, count(*) from rollouts group by 1 order by 1"
        ),
        ["a,3", "b,3"]
    );
    let error = folder
        .rollstream("collect -i tasks.jsonl --agent sim -q -o a")
        .run();
    error.exited_with(2).complaining(&["there is a run at a"]);
}

#[test]
fn json_ends_with_what_the_table_says() {
    let folder = Folder::with_tasks(sums(3));
    let command =
        folder.rollstream("collect -i tasks.jsonl --agent sim --num-repeats 2 -o run --json");
    let ended = command.run().succeeded();
    assert_eq!(ended.stderr, "");
    let events: Vec<Value> = ended
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let last = events.last().unwrap();
    assert_eq!(last["event"], "finished");
    assert_eq!(last["state"], "finished");
    assert_eq!(
        last["rollouts"],
        serde_json::json!({"planned": 6, "done": 6, "failed": 0, "pending": 0})
    );
    let reward = last["metrics"]
        .as_array()
        .unwrap()
        .iter()
        .find(|metric| metric["metric"] == "reward")
        .unwrap();
    let mean: f64 = folder.sql("run", "select avg(reward) from rollouts")[0]
        .parse()
        .unwrap();
    assert_eq!(reward["mean"].as_f64(), Some(mean));
    assert_eq!(reward["count"], 6);
    for path in last["written"].as_array().unwrap() {
        assert!(folder.has(path.as_str().unwrap()), "{path}");
    }
}

#[test]
fn a_reader_that_has_had_enough_is_no_error() {
    let folder = Folder::with_tasks(sums(3));
    folder
        .rollstream("collect -i tasks.jsonl --agent sim -o run -q")
        .run()
        .succeeded();
    let sql = "\"$0\" sql run -c 'select * from range(0, 3000000)' --format";
    for format in ["csv", "json", "ndjson"] {
        let line = format!("{{ {sql} {format}; echo \"exit $?\" >&2; }} | head -c 1");
        let mut command = Command::new("sh");
        command
            .args(["-c", &line, env!("CARGO_BIN_EXE_rollstream")])
            .current_dir(folder.path(""));
        let output = command.output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stderr),
            "exit 0\n",
            "{format}"
        );
    }
}
