//! What a resume, and a dispatch, of NeMo Gym 0.7 can be told. The simulated agent repeats a row's fields in its answer, so
//! that a task says how its rollouts end.

use serde_json::{Value, json};

use crate::common::{Folder, Task, sums};

/// Tasks of which the first ones have these fields.
fn tasks(count: u64, fields: &[Value]) -> Vec<Task> {
    let tasks = sums(count).into_iter().enumerate();
    tasks
        .map(|(index, task)| {
            let fields = fields.get(index).and_then(Value::as_object);
            let fields = fields.into_iter().flatten();
            fields.fold(task, |task, (name, value)| task.with(name, value.clone()))
        })
        .collect()
}

/// Whatever is sent for these tasks ends so.
fn faults(folder: &Folder, faults: &[(usize, &str)]) {
    let faults = faults.iter();
    let faults = faults.map(|(task, kind)| format!("{{task = {task}, kind = {kind:?}}}"));
    let faults = faults.collect::<Vec<_>>().join(", ");
    folder.write(
        "rollstream.toml",
        &format!("[sim]\nfault_at = [{faults}]\n"),
    );
}

fn collect(folder: &Folder, options: &str) -> crate::common::Ended {
    let program = folder.rollstream("collect -i tasks.jsonl -o run --agent sim -q");
    let program = program.args(options);
    if folder.has("rollstream.toml") {
        program.env("ROLLSTREAM_CONFIG", "rollstream.toml").run()
    } else {
        program.run()
    }
}

/// A row of a file of NeMo Gym's.
fn row(task: usize, more: Value) -> String {
    let mut row =
        json!({"_ng_task_index": task, "_ng_rollout_index": 0, "agent_ref": {"name": "sim"}});
    row.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    format!("{row}\n")
}

/// The materialized row of a task.
fn input(task: usize) -> String {
    let input = json!({"responses_create_params": {"input": "1 + 1"}, "expected_answer": 2});
    row(task, input)
}

#[test]
fn terminal_timeouts_are_tried_again_where_that_is_asked_for() {
    let folder = Folder::new();
    let failure = |task, class: &str| {
        row(
            task,
            json!({"_ng_failure_class": class, "_ng_failure_terminal": true}),
        )
    };
    let failures = [
        failure(0, "timeout_exceeded"),
        failure(1, "agent_run_error"),
        failure(2, "eval_missing").repeat(3),
    ];
    folder.write("x_failures.jsonl", &failures.concat());
    folder.write(
        "x_materialized_inputs.jsonl",
        &[0, 1, 2].map(input).concat(),
    );
    folder.write("x.jsonl", "");
    folder
        .rollstream("import x.jsonl -o run --gym 0.5 -q")
        .run()
        .succeeded();
    let resume = |options: &str| {
        let program = folder.rollstream("collect -o run --resume --agent sim -q");
        program.args(options).run().exited_with(3);
        folder.sql("run", "SELECT task_index FROM rollouts")
    };
    assert!(resume("").is_empty());
    // The attempts that were made still count.
    assert_eq!(resume("+retry_terminal_timeouts=true"), ["0"]);
}

#[test]
fn invalid_judgements_become_failures_and_are_tried_again() {
    let fields = [json!({"invalid_judge_response": true}), json!({})];
    let folder = Folder::with_tasks(tasks(2, &fields));
    collect(&folder, "").succeeded();
    let attempts = "SELECT task_index, attempt, outcome FROM attempts ORDER BY 1, 2";
    collect(&folder, "--resume").succeeded();
    assert_eq!(folder.sql("run", attempts), ["0,0,ok", "1,0,ok"]);
    collect(&folder, "--resume --retry-invalid-judge-responses").succeeded();
    assert_eq!(
        folder.sql("run", attempts),
        ["0,0,agent_flagged", "0,1,ok", "1,0,ok"]
    );
    let rollouts = "SELECT task_index, attempt FROM rollouts ORDER BY 1";
    assert_eq!(folder.sql("run", rollouts), ["0,1", "1,0"]);
    let class =
        "SELECT answer ->> '_ng_failure_class' FROM attempts WHERE outcome = 'agent_flagged'";
    assert_eq!(folder.sql("run", class), ["judge_invalid"]);
}

#[test]
fn rollouts_that_took_longest_are_sent_first() {
    let failure = |seconds: Value| json!({"elapsed_seconds": seconds});
    let fields = [json!(5), json!("30"), json!(null), json!(10)].map(failure);
    let folder = Folder::with_tasks(tasks(4, &fields));
    faults(&folder, &[0, 1, 2, 3].map(|task| (task, "failure_class")));
    collect(&folder, "--max-attempts 1").exited_with(3);
    let order = |attempt: u32| {
        let query = format!(
            "SELECT task_index FROM attempts WHERE attempt = {attempt} ORDER BY dispatched_at"
        );
        folder.sql("run", &query)
    };
    collect(&folder, "--resume --concurrency 1 --max-attempts 2").exited_with(3);
    assert_eq!(order(1), ["0", "1", "2", "3"]);
    let longest = "--resume --concurrency 1 --max-attempts 3 --dispatch-longest-first";
    collect(&folder, longest).exited_with(3);
    assert_eq!(order(2), ["1", "3", "0", "2"]);
}

#[test]
fn nothing_is_sent_that_a_dispatch_budget_has_no_time_for() {
    let folder = Folder::with_tasks(sums(3));
    let said = "Its --dispatch-budget-s is spent";
    for budget in [
        "--dispatch-budget-s 0",
        "+dispatch_budget_s=60 +drain_margin_s=3600",
    ] {
        let program = folder.rollstream("collect -i tasks.jsonl -o run --agent sim --overwrite");
        let ended = program.args(budget).run().exited_with(3);
        assert!(ended.stdout.contains(said), "{}", ended.stdout);
        assert_eq!(folder.sql("run", "SELECT count(*) FROM attempts"), ["0"]);
    }
    assert_eq!(folder.json("run/run.json")["rollouts"]["pending"], 3);
    let budget = "--resume --dispatch-budget-s 3600 --drain-margin-s 1";
    collect(&folder, budget).succeeded();

    let ended = collect(&folder, "--overwrite --gym 0.7 --dispatch-budget-s 0").exited_with(1);
    ended.complaining(&["None of the 3 dispatched rollouts produced a result {'cancelled': 3}"]);
}

#[test]
fn a_sweep_that_is_to_be_complete_ends_with_an_error_when_it_is_not() {
    let folder = Folder::with_tasks(sums(3));
    faults(&folder, &[(0, "failure_class")]);
    let options = "--max-attempts 1 --gym-output out/x.jsonl";
    collect(&folder, options).exited_with(3);
    let ended = collect(
        &folder,
        &format!("{options} --overwrite +require_complete=true"),
    );
    ended
        .exited_with(1)
        .complaining(&["EVAL FAILED: 2/3 samples completed"]);
    assert_eq!(folder.read("out/x.jsonl").lines().count(), 2);
}

#[test]
fn what_failed_or_is_missing_counts_as_zero_at_the_end_where_that_is_asked_for() {
    let folder = Folder::with_tasks(sums(4));
    faults(&folder, &[(0, "failure_class"), (1, "no_persist")]);
    // Tasks with a score, and the sum of these.
    let scores = |place: &str| {
        let metrics = folder.json(&format!("{place}/aggregate_metrics.json"))[0].clone();
        let count = metrics["group_level_metrics"].as_array().unwrap().len();
        let mean = metrics["agent_metrics"]["mean/reward"].as_f64().unwrap();
        (count, mean * count as f64)
    };
    for (options, count) in [
        ("", 2),
        ("+count_failure_classes_as_zero=[simulated_failure,y]", 3),
        ("--count-failure-classes-as-zero y", 2),
        ("--count-missing-rollouts-as-zero", 3),
        (
            "--count-missing-rollouts-as-zero --count-failure-classes-as-zero simulated_failure",
            4,
        ),
    ] {
        let collected = format!("--max-attempts 1 --gym 0.7 --overwrite {options}");
        collect(&folder, &collected).exited_with(3);
        let sum = |query: &str| -> f64 { folder.sql("run", query)[0].parse().unwrap() };
        // A failure that has a reward keeps it.
        let of_failure =
            "SELECT CAST(answer ->> 'reward' AS DOUBLE) FROM attempts WHERE task_index = 0";
        let expected = sum("SELECT sum(reward) FROM rollouts")
            + f64::from(u8::from(options.contains("simulated"))) * sum(of_failure);
        let is_expected = |place: &str| {
            let (found, sum) = scores(place);
            found == count && (sum - expected).abs() < 1e-9
        };
        assert!(is_expected("run"), "{options}: {:?}", scores("run"));
        if options.starts_with('-') {
            let again = format!("aggregate run -o again -q {options}");
            folder.rollstream(&again).run().succeeded();
            assert!(is_expected("again"), "{options}: {:?}", scores("again"));
        }
    }
    let refused = collect(
        &folder,
        "--gym 0.5 --overwrite --count-missing-rollouts-as-zero",
    );
    refused
        .exited_with(2)
        .complaining(&["count_missing_rollouts_as_zero", "--gym 0.7"]);
}

#[test]
fn a_failure_that_left_a_deliverable_has_it_judged_by_the_next_attempt() {
    let folder = Folder::new();
    folder.write("x_materialized_inputs.jsonl", &input(0));
    let failure = json!({"_ng_failure_class": "judge_failed", "reuse_cached_deliverable": 1});
    folder.write("x_failures.jsonl", &row(0, failure));
    folder.write("x.jsonl", "\n");
    folder
        .rollstream("import x.jsonl -o run --gym 0.7 -q")
        .run()
        .succeeded();
    let resume = "collect -o run --resume --agent sim -q";
    folder.rollstream(resume).run().succeeded();
    let sent = "SELECT result ->> 'reuse_cached_deliverable', result ->> '_ng_attempt_index' FROM rollouts";
    assert_eq!(folder.sql("run", sent), ["true,1"]);
}
