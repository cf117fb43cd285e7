//! `rollstream profile`: NeMo Gym's reward profile of a run, and of NeMo Gym's own files.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{Folder, Simulated, Task, instant, quick_and_slow, sums};

const FILES: [&str; 2] = ["reward_profiling.jsonl", "agent_metrics.json"];

fn collected(tasks: impl IntoIterator<Item = Task>, options: &str) -> Folder {
    let folder = Folder::with_tasks(tasks);
    let sim = Simulated::start(instant(["a", "b"]));
    let collect = folder.rollstream("collect -i tasks.jsonl -o run --agent a -q");
    let collect = collect.args(options).args(&sim.options());
    collect.run().succeeded();
    folder
}

fn lines(folder: &Folder, name: &str) -> Vec<Value> {
    let text = folder.read(name);
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The numbers of `values`: mean, largest, smallest, median, standard deviation.
fn statistics(values: &[f64]) -> [f64; 5] {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (mean - value).powi(2)).sum();
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let median = match sorted.len() % 2 {
        0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
        _ => sorted[middle],
    };
    let (min, max) = (sorted[0], sorted[sorted.len() - 1]);
    [mean, max, min, median, (squares / (n - 1.0)).sqrt()]
}

#[track_caller]
fn has_statistics(object: &Value, metric: &str, values: &[f64]) {
    let kinds = ["mean", "max", "min", "median", "std"];
    for (kind, expected) in kinds.iter().zip(statistics(values)) {
        let found = object[format!("{kind}/{metric}")].as_f64();
        let found = found.unwrap_or_else(|| panic!("{kind}/{metric}: {object:#}"));
        assert!(
            (found - expected).abs() <= 1e-12 * expected.abs(),
            "{kind}/{metric}: {found}, not {expected}"
        );
    }
}

fn values(rows: &[&Value], column: &str) -> Vec<f64> {
    rows.iter()
        .map(|row| row[column].as_f64().unwrap())
        .collect()
}

#[test]
fn a_run_is_profiled_by_task_and_by_agent() {
    let tasks = sums(6).into_iter().enumerate();
    let tasks = tasks.map(|(n, task)| task.for_agent(if n < 4 { "a" } else { "b" }));
    let folder = collected(tasks, "--num-repeats 5");
    let ended = folder.rollstream("profile run").run().succeeded();
    assert_eq!(ended.stderr, "");
    for line in [
        "expected_rollout_rows          30",
        "missing_rollout_rows           0",
        "reward_profile_completion_pct  100.0",
        "complete_input_rows            6",
        "  run/reward_profiling.jsonl",
        "  run/agent_metrics.json",
    ] {
        assert!(
            ended.stdout.lines().any(|found| found == line),
            "{line}: {}",
            ended.stdout
        );
    }

    let landed = folder.landed("run");
    let profile = lines(&folder, "run/reward_profiling.jsonl");
    assert_eq!(profile.len(), 6);
    for (index, task) in profile.iter().enumerate() {
        assert_eq!(task["_ng_task_index"], index);
        let rows: Vec<&Value> = landed
            .iter()
            .filter(|row| row["task_index"] == index)
            .collect();
        assert_eq!(rows.len(), 5);
        for metric in ["reward", "total_tokens", "output_tokens"] {
            has_statistics(task, metric, &values(&rows, metric));
        }
        let question = format!("What is {} + {}?", index + 1, index + 2);
        let input = &task["sample"]["responses_create_params"]["input"];
        assert_eq!(input[0]["content"], question);
        assert_eq!(task["sample"].get("_ng_task_index"), None);
        let counts = [
            "num_rollouts",
            "expected_num_rollouts",
            "missing_num_rollouts",
        ];
        assert_eq!(counts.map(|count| task[count].as_i64().unwrap()), [5, 5, 0]);
        let infos = task["rollout_infos"].as_array().unwrap();
        for (rollout, (info, row)) in infos.iter().zip(&rows).enumerate() {
            assert_eq!(info["rollout_id"], format!("{index}:{rollout}"));
            assert_eq!(info["_ng_rollout_index"], rollout);
            assert_eq!(info["reward"], row["reward"]);
            assert_eq!(info["total_tokens"], row["total_tokens"]);
        }
    }
    let agents = folder.json("run/agent_metrics.json");
    assert_eq!(agents.as_array().unwrap().len(), 2);
    for (agent, name) in agents.as_array().unwrap().iter().zip(["a", "b"]) {
        assert_eq!(agent["agent_ref"], json!({"name": name}));
        let rows: Vec<&Value> = landed
            .iter()
            .filter(|row| row["agent_name"] == name)
            .collect();
        assert_eq!(rows.len(), if name == "a" { 20 } else { 10 });
        for metric in ["reward", "total_tokens"] {
            has_statistics(agent, metric, &values(&rows, metric));
        }
    }
}

#[test]
fn a_run_s_profile_is_that_of_its_files() {
    let for_agents = |names: &'static [&'static str]| {
        let tasks = sums(4).into_iter().enumerate();
        tasks.map(|(n, task)| task.for_agent(names[n % names.len()]))
    };
    // Both agents worked on task 1, so that it has one line, over the rollouts of both.
    let shared = for_agents(&["a", "b"]).zip([0, 1, 1, 2]);
    let shared = shared.map(|(task, index)| task.with("_ng_task_index", index));
    let cases: [(Vec<Task>, usize); 3] = [
        (for_agents(&["a"]).collect(), 4),
        (for_agents(&["a", "b"]).collect(), 4),
        (shared.collect(), 3),
    ];
    for (tasks, num_lines) in cases {
        let folder = collected(tasks, "--num-repeats 3");
        folder
            .rollstream("export run -o results/x.jsonl")
            .run()
            .succeeded();
        // A second time over the first.
        for _ in 0..2 {
            folder.rollstream("profile run -q").run().succeeded();
        }
        folder
            .rollstream("profile results/x.jsonl -q")
            .run()
            .succeeded();
        for name in FILES {
            let of_run = folder.read(&format!("run/{name}"));
            assert_eq!(of_run, folder.read(&format!("results/x_{name}")));
        }
        let profile = lines(&folder, "run/reward_profiling.jsonl");
        assert_eq!(profile.len(), num_lines);
        let rollouts = profile.iter().map(|task| task["num_rollouts"].as_u64());
        assert_eq!(rollouts.flatten().sum::<u64>(), 12);
        let left = folder.content();
        let left = left.iter().find(|path| path.contains(".rollstream-"));
        assert_eq!(left, None);
    }
}

/// Of 6 rollouts one is given up at once, and so is all of one task.
fn partial() -> Folder {
    let folder = Folder::with_tasks(sums(3));
    folder.write(
        "sweep.toml",
        r#"
input = "tasks.jsonl"
agent = "sim"
num_repeats = 2
output = "run"

[sim]
latency = "fixed:1ms"
fault_at = [{ task = 0, rollout = 1, kind = "failure_terminal" }, { task = 2, kind = "failure_terminal" }]
"#,
    );
    let collect = folder.rollstream("collect --config sweep.toml -q");
    collect.run().exited_with(3);
    folder
}

#[test]
fn missing_rollouts_are_refused_unless_they_are_allowed() {
    let folder = partial();
    let ended = folder.rollstream("profile run").run();
    ended.exited_with(2).complaining(&[
        "Missing rollout results for 3 materialized input rows. Missing rollout keys: [(0, 1), (2, 0), (2, 1)].",
        "--allow-partial",
        "rollstream resume run",
    ]);
    assert!(!folder.has("run/reward_profiling.jsonl"));

    let ended = folder
        .rollstream("profile run --allow-partial --json -o elsewhere/x")
        .run()
        .succeeded();
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(
        report,
        json!({
            "expected_rollout_rows": 6, "completed_rollout_rows": 3, "missing_rollout_rows": 3,
            "extra_rollout_rows": 0, "reward_profile_completion_pct": 50.0,
            "total_input_rows": 3, "complete_input_rows": 1, "partial_input_rows": 1,
            "missing_input_rows": 1,
            "written": ["elsewhere/x/reward_profiling.jsonl", "elsewhere/x/agent_metrics.json"],
        })
    );
    let profile = lines(&folder, "elsewhere/x/reward_profiling.jsonl");
    let counts = |task: &Value| {
        let fields = [
            "_ng_task_index",
            "num_rollouts",
            "expected_num_rollouts",
            "missing_num_rollouts",
        ];
        fields.map(|field| task[field].as_i64().unwrap())
    };
    let counts: Vec<_> = profile.iter().map(counts).collect();
    assert_eq!(counts, [[0, 1, 2, 1], [1, 2, 2, 0]]);
    assert!(!folder.has("run/reward_profiling.jsonl"));
}

#[test]
fn a_run_is_profiled_while_it_is_collected() {
    let tasks = sums(5).into_iter().enumerate();
    let tasks = tasks.map(|(n, task)| task.for_agent(if n < 3 { "quick" } else { "slow" }));
    let folder = Folder::with_tasks(tasks);
    let sim = Simulated::start(quick_and_slow());
    let collect =
        folder.rollstream("collect -i tasks.jsonl --num-repeats 2 -o run --concurrency 100");
    let mut running = collect.args(&sim.options()).start();
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let status = folder.rollstream("status run --json").run();
        let status: Value = serde_json::from_str(&status.stdout).unwrap_or_default();
        if status["total"]["done"] == 6 {
            break;
        }
        assert!(
            running.is_running() && Instant::now() < deadline,
            "{status:#}"
        );
    }
    let ended = folder
        .rollstream("profile run --allow-partial --json")
        .run();
    let report: Value = serde_json::from_str(&ended.succeeded().stdout).unwrap();
    assert_eq!(report["completed_rollout_rows"], 6);
    assert_eq!(report["missing_rollout_rows"], 4);
    let profile = lines(&folder, "run/reward_profiling.jsonl");
    assert_eq!(profile.len(), 3);
    assert!(profile.iter().all(|task| task["num_rollouts"] == 2));
    running.signal("KILL");
}

#[test]
fn a_new_run_in_its_place_does_not_have_the_old_profile() {
    let folder = collected(sums(2), "--num-repeats 2");
    folder.rollstream("profile run -q").run().succeeded();
    let collect = folder.rollstream("collect -i tasks.jsonl -o run --agent sim --overwrite -q");
    collect.run().succeeded();
    for name in FILES {
        assert!(!folder.has(&format!("run/{name}")), "{name}");
    }
}

#[test]
fn what_cannot_be_profiled_is_said_with_the_way_out() {
    let folder = Folder::new();
    let answer = |task: u32, rest: &str| {
        format!("{{\"_ng_task_index\":{task},\"_ng_rollout_index\":0{rest}}}\n")
    };
    let input = |task: u32| answer(task, ",\"agent_ref\":{\"name\":\"a\"}");
    folder.write("x.jsonl", &answer(0, ",\"reward\":1,\"response\":{}"));
    folder.write("odd.jsonl", &answer(5, ",\"reward\":1,\"response\":{}"));
    folder.write("torn.jsonl", "{\"_ng_task_index\":0,");
    folder.write("y_materialized_inputs.jsonl", &(input(0) + &input(1)));
    for (line, parts) in [
        ("profile nowhere", ["there is no run", "nowhere"]),
        (
            "profile z.jsonl",
            ["'z.jsonl' does not exist", "NAME.jsonl"],
        ),
        (
            "profile x.jsonl",
            [
                "'x_materialized_inputs.jsonl' does not exist",
                "--materialized-inputs FILE",
            ],
        ),
        (
            "profile x.jsonl --materialized-inputs y_materialized_inputs.jsonl",
            ["Missing rollout keys: [(1, 0)]", "--allow-partial"],
        ),
        (
            "profile odd.jsonl --allow-partial --materialized-inputs y_materialized_inputs.jsonl",
            ["Found 1 extra rollout rows", "[(5, 0)]"],
        ),
        (
            "profile torn.jsonl --materialized-inputs y_materialized_inputs.jsonl",
            ["Malformed JSON in 'torn.jsonl' at line 1", ""],
        ),
    ] {
        folder
            .rollstream(line)
            .run()
            .exited_with(2)
            .complaining(&parts);
    }
    let before = folder.content();
    folder
        .rollstream(
            "profile x.jsonl --allow-partial -q --materialized-inputs y_materialized_inputs.jsonl",
        )
        .run()
        .succeeded();
    let mut after = folder.content();
    after.retain(|path| !before.contains(path));
    assert_eq!(after, ["x_agent_metrics.json", "x_reward_profiling.jsonl"]);
}
