//! `rollstream import` and `rollstream export`: from NeMo Gym's files to a run, and back.

use serde_json::json;

use crate::common::{Folder, sums};

/// One rollout is flagged for good, one whenever it is tried for the first time.
const SWEEP: &str = r#"
input = "tasks.jsonl"
agent = "sim"
num_repeats = 2
num_repeats_add_seed = true
output = "run"

[sim]
latency = "fixed:1ms"
fault_at = [
    { task = 1, rollout = 1, attempt = 0, kind = "failure_class" },
    { task = 2, rollout = 0, kind = "failure_terminal" },
]
"#;

const FILES: [&str; 3] = ["x.jsonl", "x_materialized_inputs.jsonl", "x_failures.jsonl"];

const INPUTS: &str = r#"{"responses_create_params":{},"agent_ref":{"name":"a"},"_ng_task_index":0,"_ng_rollout_index":0}
{"responses_create_params":{},"agent_ref":{"name":"a"},"_ng_task_index":0,"_ng_rollout_index":1}
"#;

/// A folder with a run of four tasks, twice each, and what it was exported to.
fn exported() -> Folder {
    let folder = Folder::with_tasks(sums(4));
    folder.write("sweep.toml", SWEEP);
    folder
        .rollstream("collect --config sweep.toml")
        .run()
        .exited_with(3);
    folder
        .rollstream("export run --format nemo-gym -o x.jsonl")
        .run()
        .succeeded();
    folder
}

#[test]
fn a_run_survives_the_way_through_nemo_gym_s_files() {
    let folder = exported();
    let lines = |name: &str| folder.read(name).lines().count();
    assert_eq!(lines("x_materialized_inputs.jsonl"), 8);
    assert!(lines("x.jsonl") >= 6 && lines("x_failures.jsonl") >= 2);
    let inputs = folder.read("x_materialized_inputs.jsonl");
    assert!(inputs.contains(r#"\"seed\": 1"#), "{inputs}");

    let imported = folder
        .rollstream("import x -o again --json")
        .run()
        .succeeded();
    let imported: serde_json::Value = serde_json::from_str(&imported.stdout).unwrap();
    assert_eq!(imported["rollouts"]["planned"], json!(8));
    assert_eq!(imported["warnings"], json!([]));
    folder
        .rollstream("export again -o again/x.jsonl")
        .run()
        .succeeded();
    for name in FILES {
        assert_eq!(
            folder.read(name),
            folder.read(&format!("again/{name}")),
            "{name}"
        );
    }
    for query in [
        "select task_index, rollout_index, agent_name, reward, total_tokens from rollouts order by 1, 2",
        "select task_index, rollout_index, terminal, failure_terminal, error from attempts \
         where outcome = 'agent_flagged' order by 1, 2, attempt",
    ] {
        let rows = folder.sql("run", query);
        assert!(rows.len() >= 2);
        if query.contains("error") {
            // Of a request's error the files say the class only.
            assert_eq!(rows.len(), folder.sql("again", query).len());
        } else {
            assert_eq!(rows, folder.sql("again", query));
        }
    }
}

#[test]
fn an_answer_keeps_its_bytes_but_for_the_stamps() {
    let folder = exported();
    let result = folder.sql(
        "run",
        "select result from rollouts order by task_index, rollout_index",
    );
    let lines = folder.read("x.jsonl");
    for (row, line) in result.iter().zip(lines.lines()) {
        // CSV doubles quotes.
        let answer = row.trim_matches('"').replace("\"\"", "\"");
        let answer = answer.trim_end_matches('}');
        assert!(line.starts_with(answer), "{line}\n{answer}");
        assert!(line.contains(r#""agent_ref":{"name":"sim"}"#), "{line}");
    }
}

#[test]
fn files_and_runs_are_replaced_only_when_asked() {
    let folder = exported();
    folder
        .rollstream("export run -o x.jsonl")
        .run()
        .exited_with(2)
        .complaining(&["x_materialized_inputs.jsonl", "--overwrite"]);
    folder
        .rollstream("export run -o x.jsonl --overwrite")
        .run()
        .succeeded();
    folder
        .rollstream("import x.jsonl -o run")
        .run()
        .exited_with(2)
        .complaining(&["there is a run at run already", "--overwrite"]);
    folder
        .rollstream("import x.jsonl -o run --overwrite")
        .run()
        .succeeded();
    assert_eq!(
        folder.json("run/run.json")["identity"]["imported"],
        "nemo-gym"
    );
}

#[test]
fn an_unfinished_collection_is_finished() {
    let folder = exported();
    let answers = folder.read("x.jsonl");
    let kept: Vec<&str> = answers.lines().take(3).collect();
    let torn = answers.lines().nth(3).unwrap();
    let rollouts = format!("{}\n{}", kept.join("\n"), &torn[..torn.len() / 2]);
    folder.write("x.jsonl", &rollouts);
    let imported = folder
        .rollstream("import x.jsonl -o rest")
        .run()
        .succeeded();
    assert!(
        imported
            .stderr
            .contains("'x.jsonl': line 4, the last, is torn")
            && imported.stderr.contains("pending again"),
        "{imported:#?}"
    );
    let record = folder.json("rest/run.json");
    assert_eq!(record["state"], "interrupted");
    assert_eq!(record["rollouts"]["done"], 3);
    // The import leaves the files alone.
    assert_eq!(folder.read("x.jsonl"), rollouts);

    // NeMo Gym's files have no addresses.
    let ended = folder.rollstream("resume rest").run().exited_with(2);
    let remedy = "`rollstream collect --resume --output rest` takes these options";
    ended.complaining(&["no address is known for agent 'sim'", remedy]);
    folder
        .rollstream("collect --resume -o rest --agent sim")
        .run()
        .exited_with(3);
    let record = folder.json("rest/run.json");
    assert_eq!(
        record["rollouts"],
        json!({"planned": 8, "done": 7, "failed": 1, "pending": 0})
    );
    let sent = "select count(*) from attempts where dispatched_at > timestamp '1971-01-01'";
    assert_eq!(folder.sql("rest", sent), ["4"]);
    let seeds = "select count(*) from rollouts where result like '%seed%seed%seed%'";
    assert_eq!(folder.sql("rest", seeds), ["0"], "a seed was added twice");
    folder
        .rollstream("collect --resume -o rest --agent sim")
        .run()
        .exited_with(3);
    assert_eq!(folder.sql("rest", sent), ["4"]);
}

#[test]
fn a_run_of_one_s_own_goes_on_without_its_input() {
    let folder = Folder::with_tasks(sums(2));
    let sweep = SWEEP.replace("failure_class", "no_persist");
    folder.write("sweep.toml", &sweep.replace("task = 2", "task = 0"));
    folder
        .rollstream("collect --config sweep.toml")
        .run()
        .exited_with(3);
    std::fs::remove_file(folder.path("tasks.jsonl")).unwrap();
    folder
        .rollstream("collect --resume -o run --agent sim --num-repeats 5")
        .run()
        .exited_with(2)
        .complaining(&["cannot resume", "'num_repeats' was 2 and is 5"]);
    folder
        .rollstream("collect --resume -o run --agent sim")
        .run()
        .exited_with(3);
    let pending = folder.sql(
        "run",
        "select result from rollouts where task_index = 1 and rollout_index = 1",
    );
    // It has the seed that the first command asked for.
    assert!(
        pending.len() == 1 && pending[0].contains("seed"),
        "{pending:?}"
    );
    let record = folder.json("run/run.json");
    assert_eq!(record["rollouts"]["pending"], 0);
    assert_eq!(record["inputs"][0]["path"], "tasks.jsonl");
}

#[test]
fn what_cannot_be_imported_is_refused_by_file_and_line_and_leaves_nothing() {
    let answer = |task: u32| format!("{{\"_ng_task_index\":{task},\"_ng_rollout_index\":0}}\n");
    for (inputs, rollouts, parts) in [
        (
            INPUTS.to_owned(),
            answer(5),
            vec!["'x.jsonl', line 1", "(5, 0)"],
        ),
        (
            INPUTS.to_owned(),
            format!("{}\n{{}}\n", answer(0)),
            vec!["'x.jsonl' at line 2"],
        ),
        (
            INPUTS.to_owned(),
            format!("{{}}\n{}", answer(0)),
            vec!["line 1", "_ng_task_index"],
        ),
        (
            INPUTS.trim_end().trim_end_matches('}').to_owned(),
            String::new(),
            vec![
                "'x_materialized_inputs.jsonl' ends within line 2",
                "copy it again",
            ],
        ),
    ] {
        let folder = Folder::new();
        folder.write("x_materialized_inputs.jsonl", &inputs);
        folder.write("x.jsonl", &rollouts);
        folder
            .rollstream("import x.jsonl -o run")
            .run()
            .exited_with(2)
            .complaining(&parts);
        assert!(!folder.has("run"), "{:?}", folder.content());
    }
}

#[test]
fn a_collection_without_a_file_is_started_over() {
    let folder = Folder::new();
    folder.write("x_materialized_inputs.jsonl", INPUTS);
    folder
        .rollstream("import x -o run")
        .run()
        .exited_with(2)
        .complaining(&["'x.jsonl'", "collect again", "collect --input"]);
    folder.write("x.jsonl", "");
    folder
        .rollstream("import x -o run --materialized-inputs y.jsonl")
        .run()
        .exited_with(2)
        .complaining(&["'y.jsonl'", "--materialized-inputs"]);
}

#[test]
fn a_collection_of_nothing_is_a_run_of_nothing() {
    let folder = Folder::new();
    folder.write("x_materialized_inputs.jsonl", "");
    folder.write("x.jsonl", "");
    folder.rollstream("import x -o run").run().succeeded();
    folder
        .rollstream("collect --resume -o run")
        .run()
        .succeeded();
    folder.rollstream("export run -o out").run().succeeded();
    assert_eq!(folder.read("out/run_failures.jsonl"), "");
}

#[test]
fn what_is_odd_is_reported() {
    let folder = Folder::new();
    let row = |rest: &str| format!("{{\"_ng_task_index\":0,\"_ng_rollout_index\":0{rest}}}\n");
    folder.write("x_materialized_inputs.jsonl", INPUTS);
    folder.write("x.jsonl", &(row(",\"reward\":1") + &row(",\"reward\":0")));
    folder.write(
        "x_failures.jsonl",
        "\n{}\n{\"_ng_task_index\":9,\"_ng_rollout_index\":9}\n{\"_ng",
    );
    let ended = folder.rollstream("import x -o run").run().succeeded();
    for part in [
        "1 rows have the key of an earlier row",
        "2 lines are blank or have no key",
        "1 rows have a key that no materialized input has",
        "'x_failures.jsonl': line 4, the last, is torn",
    ] {
        assert!(ended.stderr.contains(part), "{part}: {ended:#?}");
    }
    assert_eq!(
        folder.sql("run", "select reward, latency_ms, attempt from rollouts"),
        ["1.0,0.0,0"]
    );
    let times = "select finished_at is null, server_ms is null from attempts";
    assert_eq!(folder.sql("run", times), ["true,true"]);
}

#[test]
fn the_help_says_which_files_are_meant() {
    for (line, parts) in [
        ("import --help", ["NAME_failures.jsonl", "collect --resume"]),
        (
            "export --help",
            ["nemo-gym", "NAME_materialized_inputs.jsonl"],
        ),
    ] {
        let help = Folder::new().rollstream(line).run().succeeded().stdout;
        assert!(parts.iter().all(|part| help.contains(part)), "{help}");
    }
}
