//! `rollstream aggregate`: metrics over runs and files of rollouts, checked by what landed.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::common::{Folder, Task, sums};

fn collect(folder: &Folder, tasks: &str, run: &str, options: &str) {
    let command = format!("collect -i {tasks} -o {run} --agent sim -q {options}");
    folder.rollstream(&command).run().succeeded();
}

/// Eight tasks that keep their numbers wherever they stand.
fn numbered() -> Vec<Task> {
    let tasks = sums(8).into_iter().enumerate();
    tasks
        .map(|(index, task)| task.with("_ng_task_index", index))
        .collect()
}

/// The one row of a metric table about the reward.
fn of_reward(rows: &[Value], filter: impl Fn(&Value) -> bool) -> &Value {
    let rows: Vec<&Value> = rows
        .iter()
        .filter(|row| row["metric"] == "reward" && filter(row))
        .collect();
    assert_eq!(rows.len(), 1, "{rows:#?}");
    rows[0]
}

fn rewards<'a>(rows: impl IntoIterator<Item = &'a Value>) -> Vec<f64> {
    let rows = rows.into_iter();
    rows.map(|row| row["reward"].as_f64().unwrap()).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn shares_of_a_sweep_measure_as_the_whole() {
    let folder = Folder::with_tasks(numbered());
    let mut tasks = numbered();
    folder.tasks("second.jsonl", tasks.split_off(3));
    folder.tasks("first.jsonl", tasks);
    for (tasks, run) in [("tasks", "whole"), ("first", "a"), ("second", "b")] {
        collect(
            &folder,
            &format!("{tasks}.jsonl"),
            run,
            "--num-repeats 4 --no-agent-metrics",
        );
    }
    let ended = folder.rollstream("aggregate a b -o both").run().succeeded();
    assert_eq!(ended.stderr, "");
    assert!(
        ended
            .stdout
            .contains("sim: 32 of 32 rollouts done, 0 failed, 0 pending"),
        "{}",
        ended.stdout
    );
    assert_eq!(
        folder.read("both/aggregate_metrics.json"),
        folder.read("whole/aggregate_metrics.json")
    );
    for family in [
        "agent_statistics",
        "task_statistics",
        "pass_at_k",
        "spread",
        "coverage",
    ] {
        let rows = |run: &str| folder.parquet(&format!("{run}/metrics/{family}.parquet"));
        assert!(!rows("whole").is_empty(), "{family}");
        assert_eq!(rows("both"), rows("whole"), "{family}");
    }
    // The same numbers by hand.
    let landed = [folder.landed("a"), folder.landed("b")].concat();
    let rows = folder.parquet("both/metrics/agent_statistics.parquet");
    let row = of_reward(&rows, |_| true);
    assert_eq!(row["mean"], mean(&rewards(&landed)));
    assert_eq!(row["count"], 32);
}

#[test]
fn runs_of_the_same_rollouts_are_numbered_anew_with_a_note() {
    let folder = Folder::with_tasks(sums(5));
    folder.write("other.toml", "[sim]\nseed = 9\n");
    collect(&folder, "tasks.jsonl", "a", "--num-repeats 2");
    collect(
        &folder,
        "tasks.jsonl",
        "b",
        "--num-repeats 3 --config other.toml",
    );
    let ended = folder
        .rollstream("aggregate a b -o both --json")
        .run()
        .succeeded();
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert!(
        ended.stderr.starts_with("note: ") && ended.stderr.contains("renumbered"),
        "{}",
        ended.stderr
    );
    assert_eq!(report["notes"].as_array().unwrap().len(), 1);
    assert_eq!(report["coverage"][0]["done"], 25);
    let (a, b) = (folder.landed("a"), folder.landed("b"));
    let metrics = folder.json("both/aggregate_metrics.json");
    let groups = metrics[0]["group_level_metrics"].as_array().unwrap();
    assert_eq!(groups.len(), 5);
    for (task, group) in groups.iter().enumerate() {
        // The rollouts of the later run come after those of the earlier one.
        let of_task = |rows: &[Value]| -> Vec<f64> {
            rewards(rows.iter().filter(|row| row["task_index"] == task))
        };
        let expected = [of_task(&a), of_task(&b)].concat();
        let infos = group["rollout_infos"].as_array().unwrap();
        assert_eq!(rewards(infos), expected);
        assert_eq!(group["mean/reward"], mean(&expected));
        let indices = infos.iter().map(|info| info["_ng_rollout_index"].as_i64());
        assert_eq!(indices.flatten().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_written() {
    let folder = Folder::with_tasks(sums(2));
    collect(&folder, "tasks.jsonl", "a", "");
    collect(&folder, "tasks.jsonl", "b", "");
    folder.write("x.jsonl", "");
    let before = folder.content();
    for (line, parts) in [
        ("aggregate a b", vec!["--output"]),
        ("aggregate x.jsonl", vec!["--output"]),
        ("aggregate a a -o c", vec!["a is given twice"]),
        (
            "aggregate a nowhere -o c",
            vec!["there is no run", "nowhere"],
        ),
        (
            "aggregate a --param colour=3",
            vec!["--param colour=3", "answer_key"],
        ),
        (
            "aggregate a --param score_max=much",
            vec!["--param score_max=much"],
        ),
        (
            "aggregate a --score =reward",
            vec!["--score =reward", "accuracy=reward"],
        ),
        (
            "aggregate a --score accuracy=reward --tables-only",
            vec!["--score", "--tables-only"],
        ),
        (
            "aggregate a --key-metric pass@{k} --family spread",
            vec!["--key-metric", "--family"],
        ),
        (
            "aggregate a --price sim=1",
            vec!["--price sim=1", "AGENT=INPUT,OUTPUT"],
        ),
        (
            "aggregate no*.jsonl -o c",
            vec!["No shards matched input_glob='no*.jsonl'"],
        ),
    ] {
        folder
            .rollstream(line)
            .run()
            .exited_with(2)
            .complaining(&parts);
    }
    assert_eq!(folder.content(), before);
}

const CONFORMANCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conformance/aggregate");

#[test]
fn shards_of_nemo_gym_measure_as_nemo_gym_says() {
    for case in [
        "01_shards_basic",
        "02_shards_two_agents",
        "03_shards_strip_heavy_fields",
        "05_shards_rows_without_agent",
    ] {
        let folder = Folder::new();
        std::fs::create_dir(folder.path("shards")).unwrap();
        for shard in std::fs::read_dir(format!("{CONFORMANCE}/{case}/shards")).unwrap() {
            let shard = shard.unwrap();
            let name = folder.path("shards").join(shard.file_name());
            std::fs::copy(shard.path(), name).unwrap();
        }
        let ended = folder
            .rollstream("aggregate shards/*.jsonl -o out --merge merged.jsonl")
            .run()
            .succeeded();
        let left_out = "2 of 3 rollouts name no agent (agent_ref), and are left out of all metrics";
        assert_eq!(
            ended.stderr.contains(left_out),
            case.starts_with("05"),
            "{ended:#?}"
        );
        let expected = |name: &str| -> String {
            std::fs::read_to_string(format!("{CONFORMANCE}/{case}/expected/{name}")).unwrap()
        };
        // As text, since the order of keys counts.
        let expected_metrics: Value =
            serde_json::from_str(&expected("aggregate_metrics.json")).unwrap();
        let metrics = folder.json("out/aggregate_metrics.json");
        assert_eq!(metrics.to_string(), expected_metrics.to_string(), "{case}");
        let lines = |text: &str| -> Vec<Value> {
            let lines = text.lines();
            lines
                .map(|line| serde_json::from_str(line).unwrap())
                .collect()
        };
        let merged = expected("merged_rollouts.jsonl");
        assert_eq!(
            lines(&folder.read("merged.jsonl")),
            lines(&merged),
            "{case}"
        );
    }
}

/// Four tasks, three rollouts each; two rollouts are given up for good.
fn with_failures() -> Folder {
    let folder = Folder::with_tasks(sums(4));
    folder.write(
        "sweep.toml",
        r#"
input = "tasks.jsonl"
agent = "sim"
num_repeats = 3
output = "run"

[sim]
latency = "fixed:1ms"
fault_at = [
    { task = 1, rollout = 2, kind = "failure_terminal" },
    { task = 3, rollout = 0, kind = "failure_terminal" },
]
"#,
    );
    let collect = folder.rollstream("collect --config sweep.toml -q");
    collect.run().exited_with(3);
    folder
}

#[test]
fn missing_rollouts_count_as_they_are_told_to() {
    let folder = with_failures();
    let scores = rewards(&folder.landed("run"));
    let sum: f64 = scores.iter().sum();
    assert_eq!(scores.len(), 10);
    assert!(sum > 0.0 && sum < 10.0, "a sum of {sum} shows nothing");
    let statistics = |options: &str| {
        let command = folder.rollstream("aggregate run -q").args(options);
        command.run().succeeded();
        folder.parquet("run/metrics/agent_statistics.parquet")
    };
    let rows = statistics("--missing drop");
    assert_eq!(of_reward(&rows, |_| true)["mean"], sum / 10.0);
    let rows = statistics("--missing zero");
    let zero = of_reward(&rows, |_| true);
    assert_eq!(
        (&zero["mean"], &zero["count"]),
        (&json!(sum / 12.0), &json!(12))
    );
    assert_eq!(
        statistics("--param missing=zero"),
        statistics("--missing zero")
    );
    let rows = statistics("--missing bounds");
    let bounds = [
        ("low", sum / 12.0),
        ("observed", sum / 10.0),
        ("high", (sum + 2.0) / 12.0),
    ];
    for (bound, mean) in bounds {
        let row = of_reward(&rows, |row| row["bound"] == bound);
        let found = row["mean"].as_f64().unwrap();
        assert!((found - mean).abs() < 1e-15, "{bound}: {found}, not {mean}");
    }
    let rows = statistics("--missing bounds --param score_min=-1 --param score_max=3");
    let low = of_reward(&rows, |row| row["bound"] == "low");
    let high = of_reward(&rows, |row| row["bound"] == "high");
    let bounds = [low, high].map(|row| row["mean"].as_f64().unwrap());
    for (found, mean) in bounds.iter().zip([(sum - 2.0) / 12.0, (sum + 6.0) / 12.0]) {
        assert!((found - mean).abs() < 1e-15, "{found}, not {mean}");
    }
    // The table for NeMo Gym's users and what is shown are of what was observed.
    let metrics = folder.json("run/aggregate_metrics.json");
    assert_eq!(metrics[0]["agent_metrics"]["mean/reward"], sum / 10.0);
    let coverage = folder.parquet("run/metrics/coverage.parquet");
    let counts = |row: &Value| {
        ["planned", "done", "failed", "pending"].map(|count| row[count].as_i64().unwrap())
    };
    assert!(
        coverage.iter().all(|row| counts(row) == [12, 10, 2, 0]),
        "{coverage:#?}"
    );
}

#[test]
fn subsets_are_measured_by_a_field_of_the_task() {
    let tasks = sums(6)
        .into_iter()
        .zip(["easy", "hard", "easy", "hard", "hard", "easy"]);
    let folder = Folder::with_tasks(tasks.map(|(task, topic)| task.with("topic", topic)));
    collect(
        &folder,
        "tasks.jsonl",
        "run",
        "--num-repeats 4 --no-agent-metrics",
    );
    let whole = folder.read("run/aggregate_metrics.json");
    let shown = folder.rollstream("aggregate run --by topic").run();
    let shown = shown.succeeded().stdout;
    let slices: Vec<Vec<&str>> = shown
        .lines()
        .map(|line| line.split_whitespace().take(3).collect())
        .collect();
    assert_eq!(slices[0], ["agent", "metric", "topic"], "{shown}");
    for (line, slice) in slices[1..4].iter().zip(["(all)", "easy", "hard"]) {
        assert_eq!(line, &["sim", "reward", slice], "{shown}");
    }
    assert_eq!(folder.read("run/aggregate_metrics.json"), whole);
    let landed = folder.landed("run");
    let rows = folder.parquet("run/metrics/agent_statistics.parquet");
    let of_topic = |topic: &str| -> Vec<f64> {
        rewards(landed.iter().filter(|row| row["result"]["topic"] == topic))
    };
    let (easy, hard) = (of_topic("easy"), of_topic("hard"));
    assert_eq!((easy.len(), hard.len()), (12, 12));
    assert_ne!(mean(&easy), mean(&hard), "equal means show nothing");
    let all = rewards(&landed);
    for (subset, values) in [
        (json!("easy"), easy),
        (json!("hard"), hard),
        (Value::Null, all),
    ] {
        let row = of_reward(&rows, |row| row["subset"] == subset);
        assert_eq!(row["mean"], mean(&values), "{subset}");
        assert_eq!(row["count"], values.len(), "{subset}");
    }
    let tasks = folder.parquet("run/metrics/task_statistics.parquet");
    let hard = tasks.iter().filter(|row| row["subset"] == "hard");
    let hard: Vec<i64> = hard
        .filter(|row| row["metric"] == "reward")
        .map(|row| row["task_index"].as_i64().unwrap())
        .collect();
    assert_eq!(hard, [1, 3, 4]);
}

/// The first words of the lines of a table, up to the first empty line.
fn metrics_of(shown: &str) -> Vec<&str> {
    let lines = shown.lines().skip(1).take_while(|line| !line.is_empty());
    lines
        .filter_map(|line| line.split_whitespace().nth(1))
        .collect()
}

#[test]
fn scores_are_shown_first_and_other_numbers_when_asked_for() {
    let tasks = sums(6).into_iter().enumerate().map(|(place, task)| {
        let task = task.with("_private", place).with("year", 1990 + place);
        task.with("limit", 5)
    });
    let folder = Folder::with_tasks(tasks);
    collect(&folder, "tasks.jsonl", "run", "--num-repeats 4");
    let shown = folder.rollstream("aggregate run").run().succeeded().stdout;
    assert_eq!(
        metrics_of(&shown),
        ["reward", "accuracy", "turns"],
        "{shown}"
    );
    let row = |name: &str| {
        let mut lines = shown.lines();
        lines.find(|line| line.contains(name)).unwrap()
    };
    assert!(row("reward").contains("(@4)") && !row("turns").contains("(@4)"));
    let left_out = "not scores, shown with --all: expected_answer, extracted_answer, input_tokens, limit, output_tokens, \
                    total_tokens, year\n";
    assert!(shown.contains(left_out), "{shown}");
    let all = folder.rollstream("aggregate run --all").run();
    let all = all.succeeded().stdout;
    let names = metrics_of(&all);
    assert_eq!(names[..3], ["reward", "accuracy", "turns"]);
    for name in ["limit", "year", "expected_answer", "output_tokens"] {
        assert!(names.contains(&name), "{all}");
    }
    assert!(!all.contains("_private"), "{all}");
    let columns =
        "select column_name from information_schema.columns where table_name = 'rollouts'";
    let columns = folder.sql("run", columns);
    assert!(columns.contains(&"year".to_owned()), "{columns:?}");
    assert!(
        !columns.iter().any(|name| name.starts_with('_')),
        "{columns:?}"
    );
    // The files have all that they had.
    let rows = folder.parquet("run/metrics/agent_statistics.parquet");
    assert!(rows.iter().any(|row| row["metric"] == "year"));
    assert!(
        rows.iter()
            .all(|row| row.get("stderr").is_none() && !row["stderr_iid"].is_null())
    );
}

#[test]
fn every_bound_is_shown() {
    let folder = with_failures();
    let shown = folder.rollstream("aggregate run --missing bounds").run();
    let shown = shown.succeeded().stdout;
    for bound in ["observed", "low", "high"] {
        assert!(
            shown.contains(&format!(" sim    reward    {bound} ")),
            "{bound}: {shown}"
        );
    }
}

#[test]
fn the_json_is_there_only_where_every_subset_is_measured() {
    let folder = Folder::with_tasks(
        ["a", "b"]
            .into_iter()
            .zip(sums(2))
            .map(|(topic, task)| task.with("topic", topic)),
    );
    collect(&folder, "tasks.jsonl", "run", "");
    std::fs::create_dir(folder.path("families")).unwrap();
    // Of one task alone this is a division by zero.
    folder.write(
        "families/picky.sql",
        "-- Needs two rollouts.\n--\n-- Parameters: none.\n--\n-- Columns:\n--   share   of the rollouts\n\n\
         SELECT 1 / (count(*) - 1) AS share FROM rollouts\n",
    );
    let aggregate = |options: &str| {
        let command = folder.rollstream("aggregate run -q --queries families -o out");
        command.args(options).run()
    };
    aggregate("--by topic").complaining(&["Divide by zero"]);
    assert!(!folder.has("out/aggregate_metrics.json"));
    aggregate("").succeeded();
    assert!(folder.has("out/aggregate_metrics.json"));
}

/// The mean score of the most frequent pairs of answer and score.
fn majority(rows: &[&Value]) -> f64 {
    let mut votes: BTreeMap<(String, bool), u32> = BTreeMap::new();
    for row in rows {
        let answer = &row["result"]["extracted_answer"];
        if !answer.is_null() {
            let pair = (answer.to_string(), row["reward"] == 1.0);
            *votes.entry(pair).or_default() += 1;
        }
    }
    let most = votes.values().max().copied();
    let tied = votes.iter().filter(|(_, count)| Some(**count) == most);
    let scores: Vec<f64> = tied
        .map(|((_, right), _)| f64::from(u8::from(*right)))
        .collect();
    if scores.is_empty() {
        0.0
    } else {
        mean(&scores)
    }
}

#[test]
fn the_majority_votes_by_the_answer_that_is_named() {
    let folder = Folder::with_tasks(sums(8));
    collect(&folder, "tasks.jsonl", "run", "--num-repeats 5");
    let aggregate = |options: &str| {
        let command = folder.rollstream("aggregate run -q").args(options);
        command.run().succeeded();
        folder.parquet("run/metrics/majority_at_k.parquet")
    };
    assert_eq!(aggregate(""), Vec::<Value>::new());
    let rows = aggregate("--answer-key extracted_answer");
    let landed = folder.landed("run");
    let mut seen = Vec::new();
    for k in 1..=5 {
        let of_task = |task: i64| {
            let rows = landed.iter().filter(|row| row["task_index"] == task);
            majority(&rows.take(k).collect::<Vec<_>>())
        };
        let expected = mean(&(0..8).map(of_task).collect::<Vec<_>>());
        let row = of_reward(&rows, |row| row["k"] == k);
        let found = row["majority_at_k"].as_f64().unwrap();
        assert!(
            (found - expected).abs() < 1e-12,
            "{k}: {found}, not {expected}"
        );
        assert_eq!(row["num_tasks"], 8);
        seen.push(found);
    }
    assert!(
        seen.iter().any(|found| *found != seen[0]),
        "{seen:?} shows nothing"
    );

    // As NeMo Gym's benchmarks report it: in percent, in the JSON.
    aggregate("--answer-key extracted_answer --score accuracy=reward --key-metric majority@{k}");
    let metrics = folder.json("run/aggregate_metrics.json");
    let found = metrics[0]["agent_metrics"]["majority@5/accuracy"]
        .as_f64()
        .unwrap();
    assert!((found - 100.0 * seen[4]).abs() < 1e-9, "{found}");
    let key = metrics[0]["key_metrics"].as_object().unwrap();
    assert_eq!(key.keys().collect::<Vec<_>>(), ["majority@5/accuracy"]);
}
