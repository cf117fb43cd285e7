//! Whether rollouts are what they seem: `check --health`, and the end of a collection by the rules of NeMo Gym 0.7.

use rollstream::sim::{AgentConfig, FaultKind, FaultRates, SimConfig};
use serde_json::{Value, json};

use crate::common::{Folder, Simulated, instant, sums};

const TASKS: &str = include_str!("../data/example_tool_tasks.jsonl");

const FILES: [&str; 2] = ["quality_summary.json", "rollout_verdicts.jsonl"];

/// A sweep with an agent that runs here, whose model fails now and then.
fn native() -> (Folder, Simulated) {
    let config = SimConfig {
        turns: Some(3),
        model: AgentConfig {
            faults: Some(FaultRates([(FaultKind::Error500, 0.2)].into())),
            ..AgentConfig::default()
        },
        ..instant(["other"])
    };
    let sim = Simulated::start(config);
    let folder = Folder::new();
    folder.write("tasks.jsonl", TASKS);
    let (model, tools) = (sim.sim().model_url(), sim.sim().tools_url());
    folder.write(
        "sweep.toml",
        &format!(
            "input = 'tasks.jsonl'\nagent = 'own'\nlimit = 6\nnum_repeats = 2\nretry_backoff = '1ms'\n\
             [agents.own]\nkind = 'responses'\nmodel_url = '{model}'\nmodel_api = 'responses'\nmodel_retries = 9\n\
             resources_url = '{tools}'\n"
        ),
    );
    (folder, sim)
}

fn lines(text: &str) -> Vec<Value> {
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// A rollout of two turns as NeMo Gym has it; one says nothing if it is `hollow`.
fn rollout(task: u64, hollow: bool) -> String {
    let call = |n: u64| {
        json!({
            "model_call_id": format!("c{n}"), "started_at": n, "response_metadata": {"status_code": 200},
            "token_stats": {"prompt_tokens": 1, "completion_tokens": 1}
        })
    };
    let turn = |n: u64, answer: &str| {
        json!({
            "invocation_id": "root", "task_id": "t", "rollout_id": "r", "turn_no": n, "timestamp": n, "step_count": 0,
            "answer": answer, "model_calls": [{"model_call_id": format!("c{n}")}]
        })
    };
    let last = if hollow { " " } else { "so" };
    let row = json!({
        "_ng_task_index": task, "_ng_rollout_index": 0, "reward": 1.0,
        "response": {"usage": {"input_tokens": 2, "output_tokens": 2}},
        "ng_trajectory": {
            "task_id": "t", "rollout_id": "r", "model_calls": [call(1), call(2)],
            "turns": [turn(1, "well"), turn(2, last)]
        }
    });
    format!("{row}\n")
}

#[test]
fn agents_that_run_here_bring_the_evidence() {
    let (folder, _sim) = native();
    folder
        .rollstream("collect --config sweep.toml --gym 0.7 -q +output_jsonl_fpath=out/all.jsonl")
        .run()
        .succeeded();
    let verdicts = lines(&folder.read("out/rollout_verdicts.jsonl"));
    assert_eq!(verdicts.len(), 12);
    let is_healthy = |row: &Value| row["verdict"] == "healthy" && row["unobserved"] == json!([]);
    assert!(verdicts.iter().all(is_healthy), "{verdicts:?}");
    let run = &folder.json("out/quality_summary.json")["run"];
    let errors = &run["stats"]["model_call_errors"];
    assert!(errors["total"].as_u64().unwrap() > 0, "no call failed");
    assert_eq!(errors["ended_on_error"], 0);
    let tokens = &run["stats"]["tokens"];
    assert_eq!(tokens["prompt"], tokens["capture_prompt"]);

    // What is observed is what the run has in its own table.
    let calls = folder.sql("out/all", "SELECT count(*) FROM calls WHERE kind = 'model'");
    let rows = lines(&folder.read("out/all.jsonl"));
    let number = |row: &Value| {
        row["ng_trajectory"]["model_calls"]
            .as_array()
            .unwrap()
            .len()
    };
    let observed: usize = rows.iter().map(number).sum();
    assert_eq!(calls, [observed.to_string()]);
    for row in &rows {
        let capture = &row["ng_model_call_capture"];
        assert_eq!(capture["metrics"]["num_calls"], number(row));
        assert_eq!(capture["rollout_id"], row["ng_trajectory"]["rollout_id"]);
    }

    // The run itself says the same.
    let ended = folder.rollstream("check out/all --health --json").run();
    let document: Value = serde_json::from_str(&ended.succeeded().stdout).unwrap();
    assert_eq!(document["passed"], true);
    assert_eq!(document["health"][0]["summary"], *run);
    for file in FILES {
        let (of_run, of_files) = (format!("out/all/{file}"), format!("out/{file}"));
        assert_eq!(folder.read(&of_run), folder.read(&of_files));
    }
}

#[test]
fn a_collection_can_do_without() {
    let (folder, _sim) = native();
    for (more, is_there) in [
        ("--gym 0.7 --no-health-check", false),
        ("--gym 0.7 ++disable_health_check=true", false),
        ("--gym 0.7 --disable-aggregation", false),
        ("--gym 0.5", false),
        ("--gym 0.7 +health_check_workers=3", true),
    ] {
        let command = format!(
            "collect --config sweep.toml --overwrite -q +output_jsonl_fpath=out/all.jsonl {more}"
        );
        folder.rollstream(&command).run().succeeded();
        for file in FILES {
            assert_eq!(folder.has(&format!("out/{file}")), is_there, "{more}");
        }
    }
    let ended = folder
        .rollstream(
            "collect --config sweep.toml --gym 0.7 --overwrite +output_jsonl_fpath=out/all.jsonl",
        )
        .args("--health-check-ignore agent_turn_hollow,model_call_failed")
        .run()
        .succeeded();
    let said = "12 rollouts, 12 healthy, 0 unhealthy, 0 unobserved (without agent_turn_hollow, model_call_failed)";
    assert!(ended.stderr.contains(said), "{ended:?}");
    let wrong = "collect --config sweep.toml --overwrite +output_jsonl_fpath=new/all.jsonl";
    let ended = folder.rollstream(wrong);
    let ended = ended.args("++health_check_ignored_checks=[model_call_failed,nothing]");
    let ended = ended.run().exited_with(2);
    assert!(
        ended.stderr.contains("unknown health checks: nothing;"),
        "{ended:?}"
    );
    assert!(!folder.has("new"), "something was sent");
    let summary = folder.json("out/quality_summary.json");
    let ignored = json!(["agent_turn_hollow", "model_call_failed"]);
    assert_eq!(summary["run"]["ignored_checks"], ignored);
}

#[test]
fn an_unhealthy_rollout_violates_the_gate() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("files")).unwrap();
    folder.write("files/a.jsonl", &(rollout(0, false) + &rollout(1, true)));
    let ended = folder.rollstream("check files/a.jsonl --health").run();
    assert_eq!(
        ended.exited_with(4).stdout,
        "FAIL Health of files/a.jsonl: 2 rollouts, 1 healthy, 1 unhealthy, 0 unobserved\n\
         \x20       1  agent_turn_hollow\n  files/quality_summary.json\n  files/rollout_verdicts.jsonl\n"
    );
    let verdicts = lines(&folder.read("files/rollout_verdicts.jsonl"));
    let findings = json!([{
        "check": "agent_turn_hollow", "locator": {"turn": 2},
        "detail": {"reason": "agent turn has no message or tool calls"}
    }]);
    assert_eq!(verdicts[1]["findings"], findings);

    let check = "check files/a.jsonl --health --ignore-checks agent_turn_hollow -q";
    let ended = folder.rollstream(check).run().succeeded();
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("", ""));
    let wrong = "check files/a.jsonl --health --ignore-checks agent_turn_holow";
    let ended = folder.rollstream(wrong).run().exited_with(2);
    assert!(
        ended
            .stderr
            .contains("unknown health checks: agent_turn_holow"),
        "{ended:?}"
    );
}

#[test]
fn what_nobody_observed_violates_nothing_and_gates_are_asked_as_well() {
    let folder = Folder::with_tasks(sums(2));
    folder
        .rollstream("collect -i tasks.jsonl -o run --agent sim -q")
        .run()
        .succeeded();
    let check = |gate: &str| {
        let program = folder.rollstream("check base=run --health --gate");
        program.arg(gate).run()
    };
    let ended = check("SELECT 1 WHERE false").succeeded();
    let said = "ok  Health of base=run: 2 rollouts, 0 healthy, 0 unhealthy, 2 unobserved\n";
    assert!(
        ended.stdout.starts_with("ok  SELECT 1 WHERE false\n"),
        "{ended:?}"
    );
    assert!(ended.stdout.contains(said), "{ended:?}");
    check("SELECT 1").exited_with(4);
}

#[test]
fn files_that_were_aggregated_are_checked_as_nemo_gym_does() {
    let folder = Folder::with_tasks(sums(3));
    let collect =
        "collect -i tasks.jsonl --agent sim --gym 0.7 -q --gym-output a.jsonl --no-health-check";
    folder.rollstream(collect).run().succeeded();
    let aggregate = |options: &str| {
        let command =
            "aggregate +input_glob=a.jsonl +output_jsonl_fpath=out/all.jsonl --gym 0.7 -q";
        folder.rollstream(command).args(options).run()
    };
    aggregate("+disable_health_check=true").succeeded();
    assert!(!folder.has("out/quality_summary.json"));
    let ended = aggregate("").succeeded();
    assert!(
        ended.stderr.contains("health of out/all.jsonl: 3 rollouts"),
        "{}",
        ended.stderr
    );
    assert!(folder.has("out/quality_summary.json"));
    let verdicts = folder.read("out/rollout_verdicts.jsonl");
    assert_eq!(verdicts.lines().count(), 3);
    aggregate("+health_check_ignored_checks=[no_such]").exited_with(2);
}
