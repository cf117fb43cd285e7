//! Reading rollouts with `rollstream show`.

use std::process::Command;

use serde_json::{Value, json};

use crate::common::{Folder, Program, sums};
use crate::s3_server::{ACCESS_KEY, S3Server, SECRET_KEY};

/// A run of three tasks for an agent that uses a tool: two rollouts of the first, one of the others. The second answer
/// tries to take over the terminal, the last is long.
fn run() -> Folder {
    let folder = Folder::new();
    let mut inputs = String::new();
    let mut rollouts = String::new();
    let mut add = |task: u64, rollout: u64, reward: f64, said: &str| {
        let row = json!({
            "responses_create_params": {
                "input": [{"role": "user", "content": format!("What is {task} + 3?")}],
                "tools": [{"type": "function", "name": "add", "parameters": {}}],
            },
            "expected_answer": task + 3,
            "difficulty": "easy",
            "agent_ref": {"name": "math"},
            "_ng_task_index": task,
            "_ng_rollout_index": rollout,
        });
        let mut answer = row.clone();
        answer["reward"] = json!(reward);
        answer["extracted_answer"] = json!(4);
        answer["response"] = json!({"output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Use the tool."}]},
            {"type": "function_call", "name": "add", "call_id": "c1", "arguments": "{\"code\": \"a = 2\\nb = 3\"}"},
            {"type": "function_call_output", "call_id": "c1", "output": "5"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": said}]},
        ]});
        inputs.push_str(&format!("{row}\n"));
        rollouts.push_str(&format!("{answer}\n"));
    };
    add(0, 0, 1.0, "It is five.");
    add(0, 1, 0.5, "\u{1b}[2J\u{1b}]0;owned\u{7}gone");
    add(1, 0, 0.0, "No idea.");
    add(2, 0, 0.75, &"many words ".repeat(100_000));
    folder.write("x_materialized_inputs.jsonl", &inputs);
    folder.write("x.jsonl", &rollouts);
    folder.rollstream("import x -o run").run().succeeded();
    folder
}

fn shown(folder: &Folder, options: &str) -> String {
    folder.rollstream(options).run().succeeded().stdout
}

#[test]
fn without_a_task_it_lists_them_the_worst_first() {
    let folder = run();
    let list = shown(&folder, "show run");
    let tasks = list.lines().map(|line| line.split_whitespace().next());
    let tasks: Vec<&str> = tasks.flatten().collect();
    assert_eq!(tasks, ["task", "1", "0", "2"], "{list}");
    assert!(
        list.contains("     0  0.7500   2/2       0  What is 0 + 3?"),
        "{list}"
    );
    let lines = shown(&folder, "show run --json");
    let first: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(first["task_index"], 1);
    assert_eq!(first["mean_reward"], 0.0);
    assert_eq!(first["question"], "What is 1 + 3?");
}

#[test]
fn a_rollout_is_shown_from_prompt_to_reward() {
    let folder = run();
    insta::assert_snapshot!(shown(&folder, "show run 0 0"));
}

#[test]
fn it_leads_from_one_rollout_to_the_next() {
    let folder = run();
    let first = shown(&folder, "show run 0");
    assert!(first.contains("task 0, rollout 0 of agent math"), "{first}");
    assert!(
        first.ends_with("next:     rollstream show run 0 1\n"),
        "{first}"
    );
    let second = shown(&folder, "show run 0 1");
    assert!(
        second.ends_with("next:     rollstream show run 1\nprevious: rollstream show run 0 0\n"),
        "{second}"
    );
    let worst = shown(&folder, "show run --worst");
    assert!(worst.contains("task 1, rollout 0"), "{worst}");
    assert!(
        worst.ends_with("(1 of 4)\nnext:     rollstream show run --worst --at 2\n"),
        "{worst}"
    );
    let next = shown(&folder, "show run --worst --at 2");
    assert!(next.contains("task 0, rollout 1"), "{next}");
}

#[test]
fn sql_chooses_rollouts() {
    let folder = run();
    let keys = |condition: &str| -> Vec<(i64, i64)> {
        let ended = folder
            .rollstream("show run --json --where")
            .arg(condition)
            .run();
        let lines = ended.succeeded().stdout;
        let values = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        let key = |value: Value| {
            let index = |name: &str| value[name].as_i64().unwrap();
            (index("task_index"), index("rollout_index"))
        };
        values.map(key).collect()
    };
    assert_eq!(
        keys("reward < 1 AND task_index < 2 -- all"),
        [(0, 1), (1, 0)]
    );
    assert_eq!(keys("extracted_answer = 5"), []);
    let of_tasks =
        "task_index IN (SELECT task_index FROM tasks WHERE (request->>'expected_answer') = '4')";
    assert_eq!(keys(of_tasks), [(1, 0)]);
    let ended = folder
        .rollstream("show run --where")
        .arg("rewrad = 0")
        .run();
    ended.exited_with(2).complaining(&[
        "--where rewrad = 0",
        "rewrad",
        "fields of a task: task_index IN (SELECT",
    ]);
}

#[test]
fn of_equal_rewards_the_worst_are_those_of_the_worst_task() {
    let folder = Folder::new();
    let row = |task: u64, rollout: u64, reward: u64| {
        let row = json!({
            "responses_create_params": {"input": format!("task {task}")}, "agent_ref": {"name": "x"},
            "_ng_task_index": task, "_ng_rollout_index": rollout, "reward": reward, "response": {},
        });
        format!("{row}\n")
    };
    let rewards = [[0, 1, 1], [1, 1, 1], [0, 0, 1]];
    let rows = (0..).zip(rewards).flat_map(|(task, rewards)| {
        (0..)
            .zip(rewards)
            .map(move |(rollout, reward)| row(task, rollout, reward))
    });
    let rows: String = rows.collect();
    folder.write("x.jsonl", &rows);
    folder.write("x_materialized_inputs.jsonl", &rows);
    folder.rollstream("import x -o run").run().succeeded();
    let keys = |options: &str| -> Vec<String> {
        let lines = shown(&folder, &format!("show run --json --worst {options}"));
        let lines = lines.lines();
        let values = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
        let keys =
            values.map(|value| format!("{}.{}", value["task_index"], value["rollout_index"]));
        keys.collect()
    };
    assert_eq!(keys("")[..5], ["2.0", "2.1", "0.0", "2.2", "0.1"]);
    assert_eq!(keys("--where reward=0"), ["2.0", "2.1", "0.0"]);
    assert_eq!(keys("0")[..1], ["0.0"]);
}

#[test]
fn an_answer_does_not_command_the_terminal() {
    let folder = run();
    let second = shown(&folder, "show run 0 1");
    assert!(!second.contains(['\u{1b}', '\u{7}']), "{second}");
    assert!(
        second.contains(r"\u{1b}[2J\u{1b}]0;owned\u{7}gone"),
        "{second}"
    );
}

#[test]
fn a_long_answer_is_cut_unless_all_is_wanted() {
    let folder = run();
    let cut = shown(&folder, "show run 2 0");
    assert!(cut.len() < 30_000, "{}", cut.len());
    assert!(cut.contains("more; --full shows all"), "{cut}");
    let full = shown(&folder, "show run 2 0 --full");
    assert!(full.contains(&"many words ".repeat(100_000)));
    let value: Value = serde_json::from_str(&shown(&folder, "show run 2 0 --json")).unwrap();
    assert_eq!(value["items"][4]["text"].as_str().unwrap().len(), 1_100_000);
}

#[test]
fn what_does_not_exist_is_said() {
    let folder = run();
    for (options, parts) in [
        (
            "show run 9",
            ["run has no task 9", "`rollstream show run` lists"],
        ),
        (
            "show run 0 9",
            ["task 0 of run has no rollout 9", "the last is 1"],
        ),
        ("show run --worst --at 9", ["--at 9", "only 4"]),
        ("show nothing", ["there is no run", "nothing"]),
    ] {
        folder.rollstream(options).run().complaining(&parts);
    }
    let none = folder.rollstream("show run --failed").run().succeeded();
    assert_eq!(none.stdout, "");
    assert!(
        none.stderr.contains("no rollout of run failed"),
        "{}",
        none.stderr
    );
}

/// One rollout fails for good, the others are answered.
const FAILING: &str = r#"
input = "tasks.jsonl"
agent = "sim"
output = "run"

[sim]
latency = "fixed:1ms"
fault_at = [{ task = 2, rollout = 0, kind = "failure_terminal" }]
"#;

#[test]
fn a_rollout_that_failed_has_its_attempts() {
    let folder = Folder::with_tasks(sums(4));
    folder.write("sweep.toml", FAILING);
    folder
        .rollstream("collect --config sweep.toml -q")
        .run()
        .exited_with(3);
    let failed = shown(&folder, "show run --failed");
    assert!(
        failed.contains("task 2, rollout 0 of agent sim\nfailed"),
        "{failed}"
    );
    assert!(failed.contains("── attempts ─"), "{failed}");
    assert!(failed.contains("agent_flagged"), "{failed}");
    assert!(failed.contains("task 2, rollout 0 (1 of 1)\n"), "{failed}");
    let lines = folder
        .rollstream("show run --json --failed --where")
        .arg("outcome = 'agent_flagged'")
        .run()
        .succeeded()
        .stdout;
    let value: Value = serde_json::from_str(&lines).unwrap();
    assert_eq!(value["state"], "failed");
    assert_eq!(value["attempts"][0]["terminal"], true);
    assert_eq!(value["expected"]["expected_answer"], 7);
}

#[test]
fn a_run_in_a_bucket_is_read_and_listed() {
    let folder = Folder::with_tasks(sums(2));
    let store = S3Server::start();
    let endpoint = format!("http://{}", store.address());
    let run = |line: &str| {
        let program = folder.rollstream(line).env("AWS_ENDPOINT", &endpoint);
        let program = program
            .env("AWS_ALLOW_HTTP", "true")
            .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
            .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
        program.run().succeeded().stdout
    };
    run("collect -i tasks.jsonl --agent sim -q -o s3://sweeps/deep/run");
    let shown = run("show s3://sweeps/deep/run 1 0");
    assert!(shown.contains("What is 2 + 3?"), "{shown}");
    assert!(
        shown.ends_with("previous: rollstream show s3://sweeps/deep/run 0\n"),
        "{shown}"
    );
    let listed = run("ls s3://sweeps/");
    assert!(
        listed.contains("s3://sweeps/deep/run  finished  2 of 2"),
        "{listed}"
    );
}

/// Runs a line of a shell in a terminal of 80 columns.
fn in_a_terminal(folder: &Folder, line: &str) -> String {
    let program = env!("CARGO_BIN_EXE_rollstream");
    let line = format!("stty cols 80; {line}").replace("rollstream", program);
    let script = format!("script -qec \"{line}\" /dev/null");
    Program::shell(&folder.path(""), &script)
        .env("PATH", "/usr/bin:/bin")
        .env("TERM", "xterm")
        .run()
        .succeeded()
        .stdout
}

#[test]
fn a_terminal_has_colours_a_pager_and_keys() {
    if Command::new("script").arg("--version").output().is_err() {
        // Without `script` there is no terminal to try it in.
        return;
    }
    let folder = run();
    let shown = in_a_terminal(
        &folder,
        "printf nq | PAGER='sed s/^/|/' rollstream show run 0 0 --all",
    );
    assert!(shown.contains("\u{1b}[1mtask 0, rollout 0"), "{shown}");
    let paged = in_a_terminal(
        &folder,
        "PAGER='sed s/^/=/' rollstream show run 1 0 < /dev/null",
    );
    assert!(paged.contains("=\u{1b}[1mtask 1, rollout 0"), "{paged}");
    assert!(
        paged.contains("=previous: rollstream show run 0"),
        "{paged}"
    );
}
