//! The rules of NeMo Gym 0.7: what they leave out of the numbers, and what decides that they hold.

use rollstream::sim::SimConfig;
use serde_json::{Value, json};

use crate::common::{Folder, Simulated, Task, instant, sums};

/// Twelve tasks, of which the first four are masked: the simulated agent repeats a row's fields.
fn tasks() -> Vec<Task> {
    let tasks = sums(12).into_iter().enumerate();
    tasks
        .map(|(index, task)| task.with("mask_sample", index < 4))
        .collect()
}

fn collected(options: &str) -> Folder {
    let folder = Folder::with_tasks(tasks());
    let command = format!("collect -i tasks.jsonl -o run --agent sim --num-repeats 3 -q {options}");
    folder.rollstream(&command).run().succeeded();
    folder
}

/// Mean reward of the tasks from one on, by the answers themselves.
fn mean_from(folder: &Folder, first: usize) -> f64 {
    let sql = format!(
        "SELECT avg(CAST(result ->> 'reward' AS DOUBLE)) FROM rollouts WHERE task_index >= {first}"
    );
    folder.sql("run", &sql)[0].parse().unwrap()
}

fn is_close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-12
}

fn aggregate(folder: &Folder, place: &str) -> Value {
    folder.json(&format!("{place}/aggregate_metrics.json"))[0]["agent_metrics"].clone()
}

#[test]
fn masked_rollouts_are_done_and_in_no_metric_of_quality() {
    let folder = collected("--gym 0.7");
    let (all, measured) = (mean_from(&folder, 0), mean_from(&folder, 4));
    assert!(!is_close(all, measured), "the test tells nothing");

    let run = folder.json("run/run.json");
    assert_eq!(run["identity"]["gym"], "0.7");
    assert_eq!(run["rollouts"]["done"], 36);
    let metrics = aggregate(&folder, "run");
    assert!(is_close(metrics["mean/reward"].as_f64().unwrap(), measured));
    assert_eq!(metrics["coverage/measured_rollouts"], 24);
    assert_eq!(metrics["coverage/masked_rollouts"], 12);
    assert_eq!(metrics["coverage/measured_tasks"], 8);
    assert_eq!(metrics["coverage/fully_masked_tasks"], 4);
    assert_eq!(metrics["num_repeats"], 3);
    let names: Vec<&String> = metrics.as_object().unwrap().keys().collect();
    assert!(
        names
            .iter()
            .all(|name| !name.contains("mask_sample") && !name.contains("/_"))
    );
    let entry = &folder.json("run/aggregate_metrics.json")[0];
    assert_eq!(entry["repeat_level_metrics"].as_array().unwrap().len(), 3);
    assert_eq!(entry["group_level_metrics"].as_array().unwrap().len(), 8);

    // Every family of ours, and what reads them.
    for (query, expected) in [
        (
            "SELECT count FROM agent_statistics WHERE metric = 'reward'",
            "24",
        ),
        (
            "SELECT count(DISTINCT task_index) FROM task_statistics",
            "8",
        ),
        (
            "SELECT max(num_tasks) FROM pass_at_k WHERE metric = 'reward'",
            "8",
        ),
        ("SELECT num_tasks FROM spread WHERE metric = 'reward'", "8"),
        ("SELECT masked FROM coverage", "12"),
        (
            "SELECT count(*) FROM scores WHERE metric = 'mask_sample' OR starts_with(metric, '_')",
            "0",
        ),
        ("SELECT count(*) FROM rollouts WHERE masked", "12"),
    ] {
        assert_eq!(folder.sql("run", query), [expected], "{query}");
    }
    let status = folder.rollstream("status run --json").run().succeeded();
    let status: Value = serde_json::from_str(&status.stdout).unwrap();
    let shown = status["total"]["mean_reward"].as_f64();
    assert!(
        shown.is_some_and(|shown| is_close(shown, measured)),
        "{status:#}"
    );
}

#[test]
fn what_a_run_follows_is_kept_and_can_be_overruled_for_its_metrics() {
    let folder = collected("--gym 0.7");
    let (all, measured) = (mean_from(&folder, 0), mean_from(&folder, 4));
    for (options, expected) in [("", measured), ("--gym 0.5", all), ("--gym 0.7", measured)] {
        let command = format!("aggregate run -o other {options} -q");
        folder.rollstream(&command).run().succeeded();
        let metrics = aggregate(&folder, "other");
        assert!(
            is_close(metrics["mean/reward"].as_f64().unwrap(), expected),
            "{options}: {metrics}"
        );
        assert_eq!(metrics.get("num_repeats").is_some(), expected == measured);
    }
    let again =
        folder.rollstream("collect -i tasks.jsonl -o run --agent sim --num-repeats 3 --resume -q");
    again.run().succeeded();
    let other = "collect -i tasks.jsonl -o run --agent sim --num-repeats 3 --resume --gym 0.5";
    let ended = folder.rollstream(other).run().exited_with(2);
    assert!(
        ended.stderr.contains("'gym' was \"0.7\""),
        "{}",
        ended.stderr
    );

    folder
        .rollstream("profile run -o profile -q")
        .run()
        .succeeded();
    let profile = folder.json("profile/agent_metrics.json");
    assert!(is_close(
        profile[0]["mean/reward"].as_f64().unwrap(),
        measured
    ));
    assert_eq!(profile[0]["coverage/masked_rollouts"], 12);
    assert_eq!(
        folder
            .json("profile/repeat_level_metrics.json")
            .as_array()
            .unwrap()
            .len(),
        3
    );
    assert_eq!(
        folder
            .read("profile/reward_profiling.jsonl")
            .lines()
            .count(),
        8
    );
}

#[test]
fn without_evidence_the_rules_of_0_5_hold_and_mask_nothing() {
    let folder = collected("");
    assert_eq!(folder.json("run/run.json")["identity"].get("gym"), None);
    let metrics = aggregate(&folder, "run");
    assert!(is_close(
        metrics["mean/reward"].as_f64().unwrap(),
        mean_from(&folder, 0)
    ));
    assert!(is_close(
        metrics["mean/mask_sample"].as_f64().unwrap(),
        1.0 / 3.0
    ));
    assert_eq!(metrics.get("num_repeats"), None);
    let ours = "SELECT count(*) FROM agent_statistics WHERE metric = 'mask_sample' OR starts_with(metric, '_')";
    assert_eq!(folder.sql("run", ours), ["0"]);
    let landed = folder.parquet("run/metrics/agent_statistics.parquet");
    let mut names = landed.iter().map(|row| row["metric"].as_str().unwrap());
    assert!(names.all(|name| name != "mask_sample" && !name.starts_with('_')));
    folder
        .rollstream("aggregate run -o other --gym 0.7 -q")
        .run()
        .succeeded();
    assert_eq!(aggregate(&folder, "other")["coverage/masked_rollouts"], 12);
}

#[test]
fn a_comparison_leaves_masked_rollouts_out_on_both_sides() {
    let folder = collected("--gym 0.7");
    let other = "collect -i tasks.jsonl -o other --agent sim --num-repeats 3 -q --gym 0.7";
    folder.rollstream(other).run().succeeded();
    let ended = folder
        .rollstream("compare run other --json")
        .run()
        .succeeded();
    let compared: Value = serde_json::from_str(&ended.stdout).unwrap();
    let text = compared.to_string();
    assert!(
        text.contains("\"num_tasks\":8") && !text.contains("\"num_tasks\":12"),
        "{compared:#}"
    );
}

#[test]
fn stamps_in_files_speak_for_0_7() {
    let folder = Folder::new();
    let row = |task: usize, reward: f64, masked: bool, stamp: &str| {
        let mut row = json!({"_ng_task_index": task, "_ng_rollout_index": 0, "agent_ref": {"name": "a"},
                             "reward": reward, "mask_sample": masked, "response": {"usage": {}}});
        if !stamp.is_empty() {
            row["_ng_environment_server"] = stamp.into();
        }
        format!("{row}\n")
    };
    let rows = |stamp: &str| [row(0, 1.0, false, stamp), row(1, 0.0, true, stamp)].concat();
    folder.write("old.jsonl", &rows(""));
    folder.write("new.jsonl", &rows("a_environment_server"));
    for (file, mean) in [("old", 0.5), ("new", 1.0)] {
        folder
            .rollstream(&format!("aggregate {file}.jsonl -o {file} -q"))
            .run()
            .succeeded();
        assert_eq!(aggregate(&folder, file)["mean/reward"], mean, "{file}");
    }
    let entry = &folder.json("new/aggregate_metrics.json")[0];
    assert_eq!(entry["agent_ref"], json!({"name": "a"}));
    assert_eq!(entry["_ng_environment_server"], "a_environment_server");

    // A row that names no agent belongs to its server; one that names neither is counted, and said.
    let nobodys = r#"{"_ng_task_index": 2, "_ng_rollout_index": 0, "reward": 0.25}"#;
    let servers = r#"{"_ng_task_index": 3, "_ng_rollout_index": 0, "reward": 0.5, "_ng_environment_server": "e"}"#;
    folder.write(
        "new.jsonl",
        &format!("{}{nobodys}\n{servers}\n", rows("a_environment_server")),
    );
    let ended = folder
        .rollstream("aggregate new.jsonl -o new -q")
        .run()
        .succeeded();
    assert!(
        ended.stderr.contains("1 of 4 rollouts name no agent"),
        "{}",
        ended.stderr
    );
    let entries = folder.json("new/aggregate_metrics.json");
    let labels: Vec<&Value> = entries
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| &entry["agent_ref"]["name"])
        .collect();
    assert_eq!(labels, ["a", "e"]);
}

#[test]
fn files_beside_shards_are_no_shards_and_say_what_counts_as_zero() {
    let folder = Folder::new();
    let row = |task: usize, more: Value| {
        let mut row =
            json!({"_ng_task_index": task, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}});
        row.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        format!("{row}\n")
    };
    let done = json!({"reward": 1.0, "_ng_environment_server": "a_environment_server"});
    folder.write("x.jsonl", &row(0, done));
    let failed = json!({"_ng_failure_class": "agent_run_error", "_ng_failure_message": "500"});
    folder.write("x_failures.jsonl", &row(1, failed));
    let inputs: String = (0..3)
        .map(|task| row(task, json!({"responses_create_params": {}})))
        .collect();
    folder.write("x_materialized_inputs.jsonl", &inputs);
    for (options, mean) in [
        ("", 1.0),
        ("--count-failure-classes-as-zero agent_run_error", 0.5),
        ("--count-missing-rollouts-as-zero", 0.5),
        (
            "--count-missing-rollouts-as-zero --count-failure-classes-as-zero agent_run_error,other",
            1.0 / 3.0,
        ),
    ] {
        let program = folder
            .rollstream("aggregate -o out -q")
            .arg("*.jsonl")
            .args(options);
        program.run().succeeded();
        let entries = folder.json("out/aggregate_metrics.json");
        let means: Vec<f64> = entries
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["agent_metrics"]["mean/reward"].as_f64().unwrap())
            .collect();
        assert!(
            means.len() == 1 && is_close(means[0], mean),
            "{options}: {means:?}"
        );
    }
}

#[test]
fn a_head_server_with_environment_servers_speaks_for_0_7() {
    let folder = Folder::with_tasks(tasks());
    let sim = Simulated::start(SimConfig {
        gym: "0.7".parse().unwrap(),
        ..instant(["sim"])
    });
    let collect = folder.rollstream("collect -i tasks.jsonl -o run --agent sim --no-agent-metrics");
    let ended = collect.args(&sim.options()).run().succeeded();
    assert!(
        ended.stderr.contains("the rules of NeMo Gym 0.7 hold"),
        "{}",
        ended.stderr
    );
    assert_eq!(aggregate(&folder, "run")["coverage/masked_rollouts"], 4);

    // Results are stamped with the server that they came from, and measured under its name.
    let entry = &folder.json("run/aggregate_metrics.json")[0];
    assert_eq!(entry["agent_ref"], json!({"name": "sim"}));
    assert_eq!(entry["_ng_environment_server"], "sim_environment_server");
    folder
        .rollstream("export run -o out/x.jsonl -q")
        .run()
        .succeeded();
    for row in folder.read("out/x.jsonl").lines() {
        let row: Value = serde_json::from_str(row).unwrap();
        assert_eq!(row["_ng_environment_server"], "sim_environment_server");
        assert_eq!(row["_ng_result_type"], "legacy_agent");
    }
    folder
        .rollstream("aggregate out/x.jsonl -o files -q")
        .run()
        .succeeded();
    assert_eq!(&folder.json("files/aggregate_metrics.json")[0], entry);
    folder
        .rollstream("aggregate run -o again -q")
        .run()
        .succeeded();
    assert_eq!(&folder.json("again/aggregate_metrics.json")[0], entry);
}

#[test]
fn what_gave_no_answer_is_in_the_file_of_failures_and_comes_back_with_its_status() {
    let folder = Folder::with_tasks(sums(3));
    folder.write(
        "rollstream.toml",
        "[sim]\nfault_at = [{task = 1, kind = \"error_500\"}, {task = 2, attempt = 0, kind = \"failure_class\"}]\n",
    );
    let collect = "collect -i tasks.jsonl --gym-output out/x.jsonl --agent sim --retry-backoff 1ms --infra-budget 2 -q";
    let collect = |options: &str| {
        let program = folder.rollstream(collect).args(options);
        program
            .env("ROLLSTREAM_CONFIG", "rollstream.toml")
            .run()
            .exited_with(3);
        let rows = folder.read("out/x_failures.jsonl");
        let rows: Vec<Value> = rows
            .lines()
            .map(|row| serde_json::from_str(row).unwrap())
            .collect();
        rows
    };
    assert_eq!(collect("--gym 0.5").len(), 1);
    let rows = collect("--gym 0.7 --overwrite");
    let classes: Vec<&Value> = rows.iter().map(|row| &row["_ng_failure_class"]).collect();
    assert_eq!(
        classes,
        ["agent_run_error", "agent_run_error", "simulated_failure"]
    );
    let names: Vec<&str> = rows[1]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let expected = "_ng_failure_class _ng_failure_type _ng_failure_message _ng_failure_http_status \
                    _ng_failure_response_body _ng_task_index _ng_rollout_index agent_ref _ng_attempt_index";
    assert_eq!(names.join(" "), expected);
    assert_eq!(rows[1]["_ng_failure_type"], "ClientResponseError");
    assert_eq!(rows[1]["_ng_failure_http_status"], 500);
    let body = rows[1]["_ng_failure_response_body"].as_str().unwrap();
    assert_eq!(body, r#"{"detail":"the simulated agent failed"}"#);
    assert!(
        rows[1]["_ng_failure_message"]
            .as_str()
            .unwrap()
            .starts_with("500, message='Internal Server Error', url='http://")
    );

    folder
        .rollstream("import out/x.jsonl -o back -q --gym 0.7")
        .run()
        .succeeded();
    assert_eq!(folder.json("back/run.json")["identity"]["gym"], "0.7");
    let statuses = "SELECT coalesce(http_status, 0) FROM attempts WHERE outcome = 'agent_flagged' ORDER BY task_index";
    assert_eq!(folder.sql("back", statuses), ["500", "500", "0"]);
}

#[test]
fn nemo_gyms_keys_of_aggregate_and_profile_are_options() {
    let folder = Folder::new();
    let row = |rollout: usize, reward: f64| {
        let row = json!({"_ng_task_index": 0, "_ng_rollout_index": rollout, "agent_ref": {"name": "a"},
                         "reward": reward, "response": {}});
        format!("{row}\n")
    };
    folder.write("b.jsonl", &row(1, 1.0));
    folder.write("a.jsonl", &row(0, 0.0));
    let aggregate = folder
        .rollstream("aggregate ++output_jsonl_fpath=out/all.jsonl +disable_health_check=true -q");
    aggregate.arg("+input_glob=*.jsonl").run().succeeded();
    assert_eq!(
        folder.read("out/all.jsonl"),
        [row(0, 0.0), row(1, 1.0)].concat()
    );
    assert_eq!(
        folder.json("out/all_aggregate_metrics.json")[0]["agent_metrics"]["mean/reward"],
        0.5
    );

    folder.write(
        "out/all_materialized_inputs.jsonl",
        &[row(0, 0.0), row(1, 0.0), row(2, 0.0)].concat(),
    );
    let profile = |options: &str| {
        folder
            .rollstream("profile -q +rollouts_jsonl_fpath=out/all.jsonl")
            .args(options)
            .run()
    };
    profile("").exited_with(2);
    profile("++allow_partial_rollouts=True").succeeded();
    assert_eq!(
        folder
            .read("out/all_reward_profiling.jsonl")
            .lines()
            .count(),
        1
    );
    let ended = profile("+input_glob=x").exited_with(2);
    assert!(
        ended.stderr.contains("`profile` does not know +input_glob"),
        "{}",
        ended.stderr
    );
}

#[test]
fn an_answer_without_a_reward_is_a_rollout_without_a_score() {
    let folder = Folder::with_tasks(sums(3));
    folder.write(
        "rollstream.toml",
        "[sim]\nfault_at = [{task = 1, kind = \"missing_reward\"}]\n",
    );
    let collect = |options: &str| {
        let program = folder.rollstream(
            "collect -i tasks.jsonl -o run --agent sim --overwrite --retry-backoff 1ms",
        );
        program
            .args(options)
            .env("ROLLSTREAM_CONFIG", "rollstream.toml")
            .run()
    };
    collect("--gym 0.5").exited_with(3);
    collect("--gym 0.7").succeeded();
    let rows = folder.sql(
        "run",
        "select task_index, reward is null, result from rollouts order by task_index",
    );
    assert_eq!(rows.len(), 3);
    assert!(rows[1].starts_with("1,true,"), "{rows:?}");
    let rewards = folder.sql(
        "run",
        "select avg(reward), count(reward) from rollouts where task_index <> 1",
    );
    let metrics = aggregate(&folder, "run");
    let mean = metrics["mean/reward"].as_f64().unwrap();
    let (expected, count) = rewards[0].split_once(',').unwrap();
    assert!(
        is_close(mean, expected.parse().unwrap()) && count == "2",
        "{rewards:?}"
    );
}

const GYM_SPELLING: &str = "collect +input_jsonl_fpath=tasks.jsonl +output_jsonl_fpath=out/x.jsonl --agent sim +num_repeats=2";

fn rows_of(folder: &Folder, file: &str) -> Vec<Value> {
    let text = folder.read(file);
    text.lines()
        .map(|row| serde_json::from_str(row).unwrap())
        .collect()
}

#[test]
fn files_that_nemo_gym_began_are_gone_on_with_and_never_replaced_unasked() {
    let folder = Folder::with_tasks(sums(4));
    folder.rollstream(GYM_SPELLING).run().succeeded();
    // As NeMo Gym leaves them: without a run, and here unfinished.
    std::fs::remove_dir_all(folder.path("out/x")).unwrap();
    let mut rows = rows_of(&folder, "out/x.jsonl");
    rows.truncate(5);
    for row in &mut rows {
        row["reward"] = json!(0.125);
    }
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    folder.write("out/x.jsonl", &text);

    for options in ["", "--shard 1/2"] {
        let command = folder.rollstream(GYM_SPELLING).args(options);
        let refused = command.run().exited_with(2);
        refused.complaining(&[
            "out/x_materialized_inputs.jsonl exists",
            "--resume",
            "--overwrite",
        ]);
    }
    assert_eq!(folder.read("out/x.jsonl"), text);

    let resumed = folder
        .rollstream(GYM_SPELLING)
        .args("+resume_from_cache=true")
        .run()
        .succeeded();
    assert!(
        resumed.stderr.contains("5 of 8 rollouts are done"),
        "{}",
        resumed.stderr
    );
    let of_before = |rows: &[Value]| rows.iter().filter(|row| row["reward"] == 0.125).count();
    let rows = rows_of(&folder, "out/x.jsonl");
    assert_eq!((rows.len(), of_before(&rows)), (8, 5));

    // The same again has nothing to do, and may be asked.
    folder
        .rollstream(GYM_SPELLING)
        .args("+resume_from_cache=true")
        .run()
        .succeeded();
    assert_eq!(rows_of(&folder, "out/x.jsonl").len(), 8);

    let without = "--overwrite +disable_aggregation=true";
    assert!(folder.has("out/x_aggregate_metrics.json"));
    folder
        .rollstream(GYM_SPELLING)
        .args(without)
        .run()
        .succeeded();
    assert_eq!(of_before(&rows_of(&folder, "out/x.jsonl")), 0);
    assert!(
        !folder.has("out/x_aggregate_metrics.json"),
        "it is of other rollouts"
    );

    // Rollouts that only the file has are not thrown away.
    let all = folder.read("out/x.jsonl");
    let more = format!("{all}{}\n", all.lines().next().unwrap());
    folder.write("out/x.jsonl", &more);
    let command = folder.rollstream(GYM_SPELLING);
    let refused = command.args("+resume_from_cache=true").run().exited_with(2);
    refused.complaining(&["9 rollouts", "has only 8"]);
    assert_eq!(folder.read("out/x.jsonl"), more);
}
