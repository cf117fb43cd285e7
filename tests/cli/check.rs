//! Assertions in SQL about runs.

use rollstream::sim::{FaultAt, FaultKind};
use serde_json::{Value, json};

use crate::common::{BROKEN, Ended, Folder, Simulated, instant, sums};

/// A run of 3 tasks with two rollouts each, and one with four.
fn two_runs() -> Folder {
    let folder = Folder::with_tasks(sums(3));
    for (run, repeats) in [("base", "2"), ("cand", "4")] {
        folder
            .rollstream("collect -i tasks.jsonl --agent sim -q --num-repeats")
            .args(repeats)
            .args("-o")
            .args(run)
            .run()
            .succeeded();
    }
    folder
}

fn check(folder: &Folder, options: &str, gates: &[&str]) -> Ended {
    let program = folder.rollstream("check").args(options);
    let with_gate = |program: crate::common::Program, gate: &&str| program.arg("--gate").arg(gate);
    gates.iter().fold(program, with_gate).run()
}

const GATES: &str = "\
-- Nothing is pending; or given up.
SELECT agent_name, failed, pending FROM coverage WHERE failed + pending > 0;

-- At most one rollout a task
-- (which is not so).
SELECT task_index, rollout_index
FROM rollouts
WHERE rollout_index > 0
ORDER BY task_index;

SELECT metric FROM agent_statistics WHERE metric = 'no such metric'
";

#[test]
fn every_gate_is_named_and_every_violation_shown() {
    let folder = two_runs();
    folder.write("gates.sql", GATES);
    let ended = check(&folder, "base", &["gates.sql"]).exited_with(4);
    assert_eq!(
        ended.stdout,
        "ok  Nothing is pending; or given up.\n\
         FAIL At most one rollout a task: 3 violations\n\
         +------------+---------------+\n\
         | task_index | rollout_index |\n\
         +------------+---------------+\n\
         | 0          | 1             |\n\
         | 1          | 1             |\n\
         | 2          | 1             |\n\
         +------------+---------------+\n\
         ok  SELECT metric FROM agent_statistics WHERE metric = 'no such metric'\n"
    );
    let quiet = check(&folder, "base -q", &["gates.sql"]).exited_with(4);
    assert_eq!((quiet.stdout, quiet.stderr), (String::new(), ended.stderr));
}

#[test]
fn a_run_that_is_as_it_should_be_passes() {
    let folder = two_runs();
    let gates = [
        "SELECT * FROM coverage WHERE done < planned",
        "SELECT * FROM pass_at_k WHERE pass_at_k < pass_hat_k",
    ];
    let ended = check(&folder, "base", &gates).succeeded();
    assert_eq!(
        ended.stdout,
        format!("ok  {}\nok  {}\n", gates[0], gates[1])
    );
}

#[test]
fn all_violations_are_counted_and_the_first_are_shown() {
    let folder = two_runs();
    let gate = "SELECT value AS n FROM generate_series(1, 100000)";
    let ended = check(&folder, "base", &[gate]).exited_with(4);
    let (first, table) = ended.stdout.split_once('\n').unwrap();
    assert_eq!(
        first,
        format!("FAIL {gate}: 100000 violations, the first 20:")
    );
    assert_eq!(table.lines().count(), 20 + 4);

    let ended = check(&folder, "base --json", &[gate]).exited_with(4);
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let rows: Vec<Value> = (1..=20).map(|n| json!({"n": n})).collect();
    assert_eq!(
        document,
        json!({"gates": [{"name": gate, "violations": 100_000, "rows": rows}], "passed": false})
    );
}

#[test]
fn a_gate_that_is_wrong_is_named_and_the_others_are_still_asked() {
    let folder = two_runs();
    folder.write(
        "gates.sql",
        "-- Typing\nSELECT rewrd FROM rollouts;\n-- Late\nSELECT CAST(agent_name AS INT) FROM rollouts;\n\
         -- Fine\nSELECT 1 WHERE false;\n-- Violated\nSELECT 1 AS n",
    );
    let ended = check(&folder, "base", &["gates.sql"]).exited_with(2);
    let lines: Vec<&str> = ended.stdout.lines().take(4).collect();
    let expected = [
        "ERROR Typing",
        "ERROR Late",
        "ok  Fine",
        "FAIL Violated: 1 violation",
    ];
    assert_eq!(lines, expected, "{ended:?}");
    assert!(ended.stderr.contains("gate 'Typing': "), "{ended:?}");
    assert!(
        ended
            .stderr
            .contains("there is no column 'rewrd'; did you mean `reward`?"),
        "{ended:?}"
    );
    assert!(ended.stderr.contains("gate 'Late': "), "{ended:?}");

    let ended = check(&folder, "base --json", &["gates.sql"]).exited_with(2);
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let text = document["gates"][0]["error"].as_str().unwrap();
    assert!(
        text.contains("there is no column 'rewrd'; did you mean `reward`?"),
        "{text}"
    );
    assert_eq!(document["gates"][3]["violations"], 1);
    assert_eq!(document["passed"], false);
}

#[test]
fn a_run_that_is_not_complete_is_warned_of() {
    let folder = Folder::with_tasks(sums(5));
    let mut config = instant(["a"]);
    config.fault_at = vec![FaultAt {
        task: 1,
        rollout: None,
        attempt: None,
        kind: FaultKind::Error500,
    }];
    let sim = Simulated::start(config);
    let collect = "collect -i tasks.jsonl --agent a --num-repeats 2 -q --infra-budget 1 -o part";
    let collect = folder.rollstream(collect).args(&sim.options());
    collect.run().exited_with(3);
    let whole = "collect -i tasks.jsonl --agent sim -q -o whole";
    folder.rollstream(whole).run().succeeded();
    let warning = "8 of 10 rollouts are done; the gates see only these\n";
    for (options, label) in [
        ("part", "part"),
        ("part -q", "part"),
        ("it=part", "it"),
        ("whole part --json", "part"),
    ] {
        let ended = check(&folder, options, &["SELECT 1 WHERE false"]).succeeded();
        assert_eq!(ended.stderr, format!("warning: {label}: {warning}"));
    }
    let health = folder.rollstream("check part --health").run();
    assert_eq!(health.stderr, format!("warning: part: {warning}"));
    let ended = check(&folder, "whole", &["SELECT 1 WHERE false"]).succeeded();
    assert_eq!(ended.stderr, "");
}

#[test]
fn a_gate_that_cannot_mean_what_it_says_is_warned_of() {
    let folder = two_runs();
    for (runs, gate, warning) in [
        (
            "base",
            "SELECT * FROM agent_statistics WHERE metric = 'rewards' AND mean < 0.9",
            "no row has metric = 'rewards'; did you mean `reward`?",
        ),
        (
            "base",
            "SELECT metric FROM (SELECT metric, mean FROM spread) s WHERE s.metric IN ('reward', 'acuracy') AND mean < 0",
            "no row has metric = 'acuracy'; did you mean `accuracy`?",
        ),
        (
            "b=base c=cand",
            "SELECT b.mean FROM b.agent_statistics b JOIN c.agent_statistics c USING (agent_name, metric)
             WHERE 'turn' = b.metric",
            "no row has metric = 'turn'; did you mean `turns`?",
        ),
        (
            "base",
            "SELECT agent_name FROM rollouts WHERE NOT EXISTS
             (SELECT 1 FROM pass_at_k p WHERE p.metric = 'x' OR p.agent_name = rollouts.agent_name)",
            "no row has metric = 'x'; there are accuracy, ",
        ),
    ] {
        let ended = check(&folder, runs, &[gate]).succeeded();
        let lines: Vec<&str> = ended.stderr.lines().collect();
        assert_eq!(lines.len(), 1, "{ended:?}");
        let begin = format!("warning: gate '{}", &gate[..20]);
        assert!(
            lines[0].starts_with(&begin) && lines[0].contains(warning),
            "{ended:?}"
        );
    }
    let gate = "SELECT avg(reward) >= 0 AS is_good FROM rollouts";
    let ended = check(&folder, "base", &[gate]).exited_with(4);
    for part in ["returns true or false", "each row is a violation", "HAVING"] {
        assert!(ended.stderr.contains(part), "{ended:?}");
    }
    let ended = check(
        &folder,
        "base",
        &[
            "SELECT metric FROM spread WHERE metric = 'reward' AND mean < 0 OR metric = 'turns' AND mean < 0",
        ],
    );
    assert_eq!(ended.succeeded().stderr, "");
}

#[test]
fn verdicts_fit_their_terminal() {
    let folder = two_runs();
    let gates = [
        "SELECT agent_name, task_index, rollout_index, reward, result FROM rollouts ORDER BY task_index, rollout_index",
        "SELECT metric, mean FROM agent_statistics WHERE metric = 'reward' AND mean < 0",
        "SELECT nothing, agent_name, task_index, rollout_index, reward, result FROM rollouts",
    ];
    for columns in [50, 100] {
        let program = folder.rollstream("check base");
        let program = gates
            .iter()
            .fold(program, |program, gate| program.arg("--gate").arg(gate));
        let (code, shown) = program.on_terminal(columns).end();
        assert_eq!(code, Some(2), "{shown}");
        let lines = shown.lines();
        let verdicts: Vec<&str> = lines
            .take_while(|line| !line.starts_with("error"))
            .collect();
        assert!(!verdicts.concat().contains(BROKEN), "{shown}");
        assert!(shown.contains("\u{2026}: 6 violations"), "{shown}");
        assert!(shown.contains("--json shows whole rows"), "{shown}");
        assert_eq!(shown.matches("'nothing'").count(), 1, "{shown}");
    }
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let folder = two_runs();
    folder.write("empty.sql", "-- nothing yet\n");
    for (options, gate, complaint) in [
        ("base", "nowhere.sql", "there is no such file"),
        ("base", "empty.sql", "there is no query"),
        ("base", "DROP TABLE rollouts", "only queries are supported"),
        ("nowhere", "SELECT 1", "there is no run at nowhere"),
        ("base --param nosuch=1", "SELECT 1", "--param nosuch=1"),
        ("base --queries nowhere", "SELECT 1", "'nowhere'"),
    ] {
        let ended = check(&folder, options, &[gate]).exited_with(2);
        assert!(ended.stderr.contains(complaint), "{ended:?}");
    }
    check(&folder, "base", &[])
        .exited_with(2)
        .complaining(&["--gate"]);
}

#[test]
fn runs_are_compared_by_their_names() {
    let folder = two_runs();
    let gates = [
        "SELECT b.k FROM b.pass_at_k AS b JOIN c.pass_at_k AS c ON b.metric = c.metric AND b.k = c.k \
         WHERE b.planned <> 6 OR c.planned <> 12",
        "SELECT run FROM rollouts GROUP BY run HAVING count(*) > 6",
    ];
    let ended = check(&folder, "b=base c=cand --json", &gates).exited_with(4);
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(document["gates"][0]["violations"], 0);
    assert_eq!(document["gates"][1]["rows"], json!([{"run": "c"}]));
}

#[test]
fn families_of_a_folder_take_parameters() {
    let folder = two_runs();
    std::fs::create_dir(folder.path("mine")).unwrap();
    folder.write(
        "mine/late.sql",
        "-- Late rollouts.\n--\n-- Parameters:\n--   first = 1   where late begins\n\
         SELECT * FROM rollouts WHERE rollout_index >= $first",
    );
    let gate = "SELECT * FROM late";
    check(&folder, "base --queries mine -q", &[gate]).exited_with(4);
    check(&folder, "base --queries mine --param first=2 -q", &[gate]).succeeded();
    check(
        &folder,
        "cand --queries mine --param first=2 --memory 32MB -q",
        &[gate],
    )
    .exited_with(4);
}
