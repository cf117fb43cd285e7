//! Rollouts that fail: rows and an exit code, never the end of a sweep.

use serde_json::json;

use crate::common::{Folder, sums};

const FAULTS: &str = r#"
input = "tasks.jsonl"
agent = "sim"
num_repeats = 2
output = "run"
retry_backoff = "1ms"

[sim]
latency = "fixed:1ms"
fault_at = [
    { task = 0, kind = "error_500" },
    { task = 1, rollout = 1, kind = "not_json" },
    { task = 2, rollout = 0, kind = "failure_terminal" },
]
"#;

#[test]
fn some_rollouts_that_fail_make_exit_code_3_and_rows_that_say_why() {
    let folder = Folder::with_tasks(sums(4));
    folder.write("sweep.toml", FAULTS);
    let ended = folder
        .rollstream("collect --config sweep.toml")
        .run()
        .exited_with(3);
    assert!(
        ended.stdout.contains("4 of 8 rollouts done, 4 failed ("),
        "{}",
        ended.stdout
    );
    for part in [
        "4 rollouts failed. Attempts that failed:",
        "10 attempts of sim: the network or the server failed (HTTP 500): ",
    ] {
        assert!(ended.stdout.contains(part), "{part}: {}", ended.stdout);
    }
    assert!(
        ended.stdout.contains("2 infra") && ended.stdout.contains("1 data"),
        "{}",
        ended.stdout
    );
    let run = folder.json("run/run.json");
    assert_eq!(
        run["rollouts"],
        json!({"planned": 8, "done": 4, "failed": 4, "pending": 0})
    );

    // Each until its budget is spent: 5 of the one, 2 of the other, and none where the agent says so.
    let failed = "select task_index, rollout_index, outcome, http_status, count(*), min(attempt), max(attempt), \
                  count(*) filter (where terminal), max(attempt) filter (where terminal) \
                  from attempts where outcome <> 'ok' group by 1, 2, 3, 4 order by 1, 2";
    assert_eq!(
        folder.sql("run", failed),
        [
            "0,0,infra,500,5,0,4,1,4",
            "0,1,infra,500,5,0,4,1,4",
            "1,1,data,200,2,0,1,1,1",
            "2,0,agent_flagged,200,1,0,0,1,0"
        ]
    );
    let why = folder.sql("run", "select error from attempts where task_index = 0");
    assert!(
        why.iter()
            .all(|why| why.contains("POST http://") && why.contains("HTTP 500")),
        "{why:?}"
    );
    // A failure is a gap, not a reward of zero.
    assert_eq!(
        folder.sql("run", "select count(*) from rollouts where task_index = 0"),
        ["0"]
    );
    assert_eq!(
        folder.sql("run", "select count(*) from attempts where error is null"),
        ["4"]
    );
}

#[test]
fn a_resume_with_larger_budgets_tries_again_what_was_given_up_but_not_what_never_may() {
    let folder = Folder::with_tasks(sums(4));
    folder.write("sweep.toml", FAULTS);
    folder
        .rollstream("collect --config sweep.toml")
        .run()
        .exited_with(3);
    let healthy = FAULTS.split("fault_at").next().unwrap();
    folder.write("sweep.toml", healthy);
    let resume = "collect --config sweep.toml --resume";
    folder.rollstream(resume).run().exited_with(3);
    let done = "select count(*) from rollouts";
    assert_eq!(folder.sql("run", done), ["4"]);
    let larger = " --infra-budget 6 --data-budget 3 --max-attempts 9";
    folder
        .rollstream(&format!("{resume}{larger}"))
        .run()
        .exited_with(3);
    let rollouts = "select task_index, count(*) from rollouts group by 1 order by 1";
    assert_eq!(folder.sql("run", rollouts), ["0,2", "1,2", "2,1", "3,2"]);
    assert_eq!(
        folder.sql(
            "run",
            "select count(*) from attempts where task_index = 2 and rollout_index = 0"
        ),
        ["1"]
    );
}

#[test]
fn the_exit_code_is_still_3_when_what_failed_for_good_is_all_that_is_missing() {
    let folder = Folder::with_tasks(sums(4));
    folder.write("sweep.toml", FAULTS);
    folder
        .rollstream("collect --config sweep.toml")
        .run()
        .exited_with(3);
    folder.write("sweep.toml", FAULTS.split("fault_at").next().unwrap());
    let ended = folder
        .rollstream("collect --config sweep.toml --resume --infra-budget 6 --data-budget 3")
        .run()
        .exited_with(3);
    let plan = folder
        .rollstream("plan --config sweep.toml --resume --infra-budget 6 --data-budget 3 --json")
        .run()
        .succeeded()
        .stdout;
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    assert_eq!(plan["num_pending"], 0, "{plan:#}");
    let counts = "7 of 8 rollouts done, 1 failed (1 agent_flagged)";
    assert!(ended.stdout.contains(counts), "{}", ended.stdout);
    // The class is that of the last failure, also where another process saw it.
    let again = folder
        .rollstream("collect --config sweep.toml --resume --infra-budget 6 --data-budget 3")
        .run()
        .exited_with(3);
    assert!(again.stdout.contains(counts), "{}", again.stdout);
}

#[test]
fn every_rollout_can_fail_without_an_end_before_the_last() {
    let folder = Folder::with_tasks(sums(6));
    folder.write(
        "sweep.yaml",
        "sim: {latency: 'fixed:0ms', faults: {reset: 0.5, error_500: 0.5}}\n",
    );
    let command = folder.rollstream(
        "collect --config sweep.yaml -i tasks.jsonl --agent sim -o run --retry-backoff 1ms --json",
    );
    let ended = command.run().exited_with(3);
    let finished: serde_json::Value =
        serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(
        finished["rollouts"],
        json!({"planned": 6, "done": 0, "failed": 6, "pending": 0})
    );
    assert_eq!(finished["failed"], json!({"infra": 6}));
    assert_eq!(
        folder.sql(
            "run",
            "select count(*) from attempts where error is not null"
        ),
        ["30"]
    );
}

#[test]
fn the_first_failures_of_each_kind_are_told_as_they_happen() {
    let folder = Folder::with_tasks(sums(4));
    folder.write("sweep.toml", FAULTS);
    let told = |options: &str| {
        let collect = folder.rollstream("collect --config sweep.toml --overwrite");
        let ended = collect.args(options).run().exited_with(3);
        let lines = ended.stderr.lines();
        let told = lines.filter(|line| line.contains("agent 'sim', task "));
        told.map(str::to_owned).collect::<Vec<_>>()
    };
    let first = told("");
    assert_eq!(first.len(), 3, "{first:?}");
    for part in [
        "task 0, rollout ",
        "infra: POST http://127.0.0.1:",
        "HTTP 500",
        "task 1, rollout 1: data: ",
        "task 2, rollout 0: agent_flagged: ",
    ] {
        assert!(
            first.iter().any(|line| line.contains(part)),
            "{part}: {first:?}"
        );
    }
    // Ten attempts met the error, two what was no JSON, and one was flagged.
    assert_eq!(told("--show-failures 1000").len(), 13);
    assert!(told("--show-failures 0").is_empty());
}
