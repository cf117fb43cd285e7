//! `rollstream compare`: what it joins, what it says, what it writes, and what it refuses.

use std::collections::BTreeMap;
use std::fs::File;
use std::time::{Duration, Instant};

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Row, RowAccessor};
use rollstream::sim::{AgentConfig, FaultKind, FaultRates, SimConfig};
use serde_json::{Value, json};

use crate::common::{BROKEN, Folder, Simulated, Task, instant, quick_and_slow, sums, task};

/// Far longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(120);

const COLLECT: &str = "collect --num-repeats 3 -q -i";

fn collect(folder: &Folder, line: &str) {
    folder.rollstream(COLLECT).args(line).run().succeeded();
}

fn json(folder: &Folder, line: &str) -> Value {
    let ended = folder
        .rollstream("compare --json")
        .args(line)
        .run()
        .succeeded();
    serde_json::from_str(&ended.stdout).unwrap()
}

/// Two runs: `other` has its tasks the other way round, samples in another way, lacks one and has another two.
fn two_runs() -> Folder {
    let folder = Folder::with_tasks(sums(30));
    let others = sums(32).into_iter().skip(1).rev();
    folder.tasks("other.jsonl", others);
    collect(&folder, "tasks.jsonl -o base --agent sim");
    let options =
        "--set responses_create_params.temperature=0.1 --agent sim +sim.difficulty=0.1 +sim.seed=7";
    collect(&folder, &format!("other.jsonl -o other {options}"));
    folder
}

/// The mean reward of each question.
fn means(folder: &Folder, run: &str) -> BTreeMap<String, f64> {
    let query = "select json_get_str(t.request, 'responses_create_params', 'input', 0, 'content'), avg(r.reward) \
                 from rollouts r join tasks t using (task_index) group by 1";
    let rows = folder.sql(run, query);
    rows.iter()
        .map(|row| {
            let (question, mean) = row.rsplit_once(',').unwrap();
            (question.to_owned(), mean.parse().unwrap())
        })
        .collect()
}

fn rows(folder: &Folder, name: &str) -> Vec<Row> {
    let file = SerializedFileReader::new(File::open(folder.path(name)).unwrap()).unwrap();
    file.get_row_iter(None)
        .unwrap()
        .map(Result::unwrap)
        .collect()
}

#[test]
fn tasks_are_joined_by_what_they_ask() {
    let folder = two_runs();
    let report = json(&folder, "base other --metric reward --flips flips.parquet");
    let counts = &report["overlaps"][0];
    assert_eq!(
        (
            &counts["in_common"],
            &counts["only_in_base"],
            &counts["only_in_candidate"]
        ),
        (&json!(29), &json!(1), &json!(2))
    );
    let (base, other) = (means(&folder, "base"), means(&folder, "other"));
    let pairs: Vec<(f64, f64)> = base
        .iter()
        .filter_map(|(question, mean)| Some((*mean, *other.get(question)?)))
        .collect();
    assert_eq!(pairs.len(), 29);
    let [row] = report["comparisons"].as_array().unwrap().as_slice() else {
        panic!("{report:#}");
    };
    let number = |name: &str| row[name].as_f64().unwrap();
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / 29.0;
    for (name, expected) in [
        ("base_mean", mean(pairs.iter().map(|pair| pair.0).collect())),
        (
            "candidate_mean",
            mean(pairs.iter().map(|pair| pair.1).collect()),
        ),
        (
            "difference",
            mean(pairs.iter().map(|pair| pair.1 - pair.0).collect()),
        ),
    ] {
        assert!((number(name) - expected).abs() < 1e-12, "{name}: {row:#}");
    }
    assert!(number("difference") > 0.0 && number("ci_low") < number("difference"));
    let flipped = |gained: bool| {
        let is_flip = |pair: &&(f64, f64)| (pair.0 < 0.5) == gained && (pair.1 >= 0.5) == gained;
        pairs.iter().filter(is_flip).count()
    };
    assert_eq!(row["gained"], flipped(true));
    assert_eq!(row["lost"], flipped(false));
    assert!(flipped(true) > 0, "nothing flips");

    let flips = rows(&folder, "flips.parquet");
    assert_eq!(flips.len(), flipped(true) + flipped(false));
    assert_eq!(
        report["flips"],
        json!({"path": "flips.parquet", "num_rows": flips.len()})
    );
    for row in &flips {
        let text = |column: usize| row.get_string(column).unwrap().as_str();
        assert_eq!([text(0), text(1), text(2)], ["reward", "other", "sim"]);
        assert_eq!(text(3).len(), 32);
        let (base_index, other_index) = (row.get_long(4).unwrap(), row.get_long(5).unwrap());
        assert_eq!(base_index + other_index, 31, "the input was turned round");
        let (base, other) = (row.get_double(6).unwrap(), row.get_double(7).unwrap());
        assert_eq!((row.get_long(8).unwrap(), row.get_long(9).unwrap()), (3, 3));
        assert_eq!(row.get_double(10).unwrap(), other - base);
        let flip = if other > base { "gained" } else { "lost" };
        assert_eq!(text(11), flip);
    }
    assert!(
        !folder
            .content()
            .iter()
            .any(|path| path.contains(".rollstream-"))
    );
}

#[test]
fn people_see_a_table_and_what_was_left_out() {
    let folder = two_runs();
    let ended = folder
        .rollstream("compare base hard=other --seed 3 --flips flips.parquet")
        .run()
        .succeeded();
    assert_eq!(ended.stderr, "");
    for part in [
        "base base:\n  sim: 90 of 90 rollouts done, 0 failed, 0 pending\n",
        "candidate hard (other):\n  sim: 93 of 93 rollouts done",
        "hard: 29 tasks in common, 1 only in the base, 2 only in the candidate\n",
        "each task weighs the same",
        "95 % CI",
        "p < 0.05 after Holm's correction for 1 comparison",
        "flips are in flips.parquet\n",
    ] {
        assert!(ended.stdout.contains(part), "{part}: {}", ended.stdout);
    }
    let metrics: Vec<&str> = ended
        .stdout
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("metric"))
        .skip(1)
        .map_while(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(metrics, ["reward"]);
    let all = folder.rollstream("compare base other --all").run();
    let all = all.succeeded().stdout;
    assert!(
        all.contains("\n accuracy  ") && all.contains("\n output_tokens  "),
        "{all}"
    );

    let again = |line: &str| folder.rollstream(line).run().succeeded().stdout;
    assert_eq!(
        again("compare base other --seed 3"),
        again("compare base other --seed 3")
    );
}

#[test]
fn the_verdict_comes_first_and_can_fail_a_build() {
    let folder = Folder::with_tasks(sums(60));
    let options = "tasks.jsonl --agent sim +sim.difficulty";
    for (run, difficulty) in [("base", "0.5"), ("bad", "0.9"), ("good", "0.1")] {
        collect(&folder, &format!("{options}={difficulty} -o {run}"));
    }
    let compared = |line: &str, code: i32, verdict: &str| {
        let ended = folder.rollstream("compare").args(line).run();
        let ended = ended.exited_with(code);
        assert!(ended.stdout.starts_with(verdict), "{}", ended.stdout);
    };
    compared("base bad", 0, "bad is worse in reward: -0.");
    compared("base bad --fail-if-worse", 4, "bad is worse in reward: -0.");
    compared(
        "base good bad --fail-if-worse",
        4,
        "good is better in reward: +0.",
    );
    compared(
        "base good --fail-if-worse",
        0,
        "good is better in reward: +0.",
    );
    compared("base bad --json --fail-if-worse", 4, "{");
    let same =
        "no significant difference in reward: same has 0 (95 % CI 0 to 0, p 1.0000)\n\nbase base:";
    compared("base same=base --fail-if-worse", 0, same);
    let several = "same shows no significant difference in reward, accuracy\n";
    let metrics = "--metric reward --metric accuracy";
    compared(&format!("base same=base {metrics}"), 0, several);

    for columns in [50, 80] {
        let program = folder.rollstream("compare base good");
        let (_, shown) = program.on_terminal(columns).end();
        assert!(!shown.contains(BROKEN), "{shown}");
        let header = shown.lines().find(|line| line.starts_with(" metric "));
        let header: Vec<&str> = header.unwrap().split_whitespace().take(4).collect();
        assert_eq!(
            header,
            ["metric", "base", "candidate", "difference"],
            "{shown}"
        );
        assert!(
            shown.contains("(a wider terminal also shows MDE, test"),
            "{shown}"
        );
    }
}

#[test]
fn a_difference_by_rounding_alone_is_none() {
    let folder = Folder::new();
    // The same scores in another order, which sum up to other last digits.
    for (name, scores) in [("a", [0.1, 0.2, 0.3]), ("b", [0.3, 0.2, 0.1])] {
        let row = |task: usize, rollout: usize, reward: f64| {
            json!({
                "_ng_task_index": task, "_ng_rollout_index": rollout, "agent_ref": {"name": "x"},
                "reward": reward, "responses_create_params": {"input": format!("task {task}")},
                "response": {}
            })
        };
        let rows = (0..3).flat_map(|task| {
            let scores = scores.into_iter().enumerate();
            scores.map(move |(rollout, reward)| row(task, rollout, reward))
        });
        let lines: String = rows.map(|row| format!("{row}\n")).collect();
        folder.write(&format!("{name}.jsonl"), &lines);
        let inputs = (0..3).flat_map(|task| (0..3).map(move |rollout| row(task, rollout, 0.0)));
        let inputs: String = inputs.map(|row| format!("{row}\n")).collect();
        folder.write(&format!("{name}_materialized_inputs.jsonl"), &inputs);
    }
    let report = json(&folder, "a.jsonl b.jsonl --flips flips.parquet");
    let row = &report["comparisons"][0];
    assert_ne!(
        row["base_mean"], row["candidate_mean"],
        "shows nothing: {row:#}"
    );
    for number in ["difference", "ci_low", "ci_high"] {
        assert_eq!(row[number], 0.0, "{row:#}");
    }
    assert_eq!((&row["gained"], &row["lost"]), (&json!(0), &json!(0)));
    assert_eq!(report["flips"]["num_rows"], 0);
}

/// What a value is made of: types in place of values, and of arrays their first element.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| (name.clone(), shape(value)))
            .collect(),
        Value::Array(values) => values.iter().take(1).map(shape).collect(),
        Value::String(_) => json!("text"),
        Value::Number(_) => json!("number"),
        Value::Bool(_) => json!("boolean"),
        Value::Null => Value::Null,
    }
}

#[test]
fn programs_get_one_document() {
    let folder = two_runs();
    let report = json(
        &folder,
        "base other --metric reward --flips flips.parquet --task-key responses_create_params.input",
    );
    insta::assert_snapshot!(format!("{:#}", shape(&report)));
}

/// Tasks for `a` and `b`, every other one.
fn for_two(count: u64, a: &str, b: &str) -> Vec<Task> {
    let tasks = sums(count).into_iter().zip([a, b].into_iter().cycle());
    tasks.map(|(task, agent)| task.for_agent(agent)).collect()
}

#[test]
fn agents_of_the_same_name_are_compared_and_others_are_asked_for() {
    let folder = Folder::with_tasks(for_two(8, "a", "b"));
    folder.tasks("others.jsonl", for_two(8, "a", "c"));
    let all_for_d = sums(8).into_iter().map(|task| task.for_agent("d"));
    folder.tasks("one.jsonl", all_for_d);
    folder.tasks(
        "both.jsonl",
        ["a", "d"]
            .into_iter()
            .flat_map(|agent| sums(8).into_iter().map(move |task| task.for_agent(agent))),
    );
    let sim = Simulated::start(instant(["a", "b", "c", "d"]));
    for (tasks, run) in [
        ("tasks", "two"),
        ("others", "others"),
        ("one", "one"),
        ("both", "both"),
    ] {
        collect(
            &folder,
            &format!("{tasks}.jsonl -o {run} {}", sim.options()),
        );
    }
    let agents = |report: &Value| -> Vec<String> {
        let rows = report["comparisons"].as_array().unwrap().iter();
        rows.map(|row| format!("{} {}", row["base_agent"], row["candidate_agent"]).replace('"', ""))
            .collect()
    };
    let report = json(&folder, "two same=two --metric reward");
    assert_eq!(agents(&report), ["a a", "b b"]);
    assert_eq!(report["overlaps"][1]["in_common"], 4);
    let shown = folder
        .rollstream("compare two same=two --metric reward")
        .run()
        .succeeded()
        .stdout;
    assert!(
        shown.contains("same a: 4 tasks in common") && shown.contains("same b: 4 tasks"),
        "{shown}"
    );

    let ended = folder.rollstream("compare two others").run().exited_with(2);
    ended.complaining(&[
        "two has 'a', 'b'",
        "others has 'a', 'c'",
        "two#AGENT",
        "others#AGENT",
    ]);
    let ended = folder.rollstream("compare two#a one").run().succeeded();
    assert!(
        ended
            .stdout
            .contains("one: 4 tasks in common, 0 only in the base, 4 only in the candidate")
    );
    let ended = folder.rollstream("compare two#x one").run().exited_with(2);
    ended.complaining(&["no agent 'x'", "'a', 'b'"]);

    let report = json(&folder, "both#a both#d --metric reward");
    assert_eq!(agents(&report), ["a d"]);
    assert_eq!(report["comparisons"][0]["candidate"], "both#d");
    assert_eq!(report["overlaps"][0]["in_common"], 8);
    assert_eq!(report["base"]["agents"].as_array().unwrap().len(), 1);
}

#[test]
fn tasks_that_differ_are_joined_by_a_field() {
    let with_id = |prompt: &'static str| {
        (0..5).map(move |n| task(&format!("{prompt} {n}?")).with("source", json!({"id": n})))
    };
    let folder = Folder::with_tasks(with_id("What is"));
    folder.tasks("other.jsonl", with_id("Tell me"));
    for (tasks, run) in [("tasks", "base"), ("other", "other")] {
        collect(&folder, &format!("{tasks}.jsonl -o {run} --agent sim"));
    }
    let ended = folder.rollstream("compare base other").run().exited_with(2);
    ended.complaining(&["no task in common", "5 and 5 tasks", "--task-key"]);
    let ended = folder
        .rollstream("compare base other --task-key nothing")
        .run();
    ended.exited_with(2).complaining(&[
        "no task in common",
        "'nothing'",
        "missing in 5 and 5 tasks",
    ]);
    let report = json(&folder, "base other --task-key source.id");
    assert_eq!(report["overlaps"][0]["in_common"], 5);
}

#[test]
fn missing_rollouts_are_reported() {
    let folder = Folder::with_tasks(sums(10).into_iter().map(|task| task.for_agent("a")));
    let broken = AgentConfig {
        faults: Some(FaultRates([(FaultKind::Error500, 0.3)].into())),
        ..AgentConfig::default()
    };
    let faulty = Simulated::start(SimConfig {
        agents: [("a".to_owned(), broken)].into(),
        ..instant([])
    });
    let whole = Simulated::start(instant(["a"]));
    collect(
        &folder,
        &format!("tasks.jsonl -o whole {}", whole.options()),
    );
    let collect = folder
        .rollstream(COLLECT)
        .args("tasks.jsonl -o faulty --infra-budget 1");
    collect.args(&faulty.options()).run().exited_with(3);
    let done: u64 = folder.sql("faulty", "select count(*) from rollouts")[0]
        .parse()
        .unwrap();
    assert!(done < 30 && done > 0);

    let ended = folder.rollstream("compare whole faulty").run().succeeded();
    let missing = 30 - done;
    let warning = format!(
        "warning: faulty: {missing} of 30 rollouts of agent 'a' are missing ({missing} failed, 0 pending)"
    );
    assert!(
        ended.stderr.starts_with(&warning) && ended.stderr.lines().count() == 1,
        "{}",
        ended.stderr
    );
    let counted = format!("a: {done} of 30 rollouts done, {missing} failed, 0 pending");
    assert!(ended.stdout.contains(&counted), "{}", ended.stdout);
    let report = json(&folder, "whole faulty --metric reward");
    assert_eq!(report["candidates"][0]["agents"][0]["failed"], missing);
    let unscored = "select 10 - count(distinct task_index) from rollouts";
    let unscored: u64 = folder.sql("faulty", unscored)[0].parse().unwrap();
    let row = &report["comparisons"][0];
    assert_eq!(
        (&row["num_tasks"], &row["without_candidate"]),
        (&json!(10 - unscored), &json!(unscored))
    );
}

#[test]
fn a_run_can_be_compared_while_it_is_collected() {
    let quick = sums(6).into_iter().map(|task| task.for_agent("quick"));
    let slow = sums(2).into_iter().map(|task| task.for_agent("slow"));
    let folder = Folder::with_tasks(quick.chain(slow));
    let sim = Simulated::start(quick_and_slow());
    let all = Simulated::start(instant(["quick", "slow"]));
    collect(&folder, &format!("tasks.jsonl -o base {}", all.options()));
    let mut running = folder
        .rollstream(COLLECT)
        .args("tasks.jsonl -o live")
        .args(&sim.options())
        .start();
    let begun = Instant::now();
    let report = loop {
        // Until the run has its record, there is none; until it has answers, there is nothing to compare.
        let ended = folder
            .rollstream("compare base#quick live#quick --json --metric reward")
            .run();
        let report: Value = serde_json::from_str(&ended.stdout).unwrap_or_default();
        if report["candidates"][0]["agents"][0]["done"] == 18 {
            break report;
        }
        assert!(
            running.is_running() && begun.elapsed() < PATIENCE,
            "{ended:?}"
        );
    };
    assert_eq!(report["comparisons"][0]["num_tasks"], 6);
    assert_eq!(report["comparisons"][0]["difference"], 0.0);
    let ended = folder
        .rollstream("compare base live --metric reward")
        .run()
        .succeeded();
    let warning =
        "warning: live: 6 of 6 rollouts of agent 'slow' are missing (0 failed, 6 pending)";
    assert!(ended.stderr.starts_with(warning), "{}", ended.stderr);
    let left_out = "live slow: not on both sides of any common task: reward\n";
    assert!(ended.stdout.contains(left_out), "{}", ended.stdout);
    let ended = folder.rollstream("compare base#slow live#slow").run();
    ended
        .exited_with(2)
        .complaining(&["nothing to compare", "'reward'"]);
}

#[test]
fn what_cannot_be_compared_is_refused_with_what_to_do() {
    let folder = Folder::with_tasks(sums(3));
    collect(&folder, "tasks.jsonl -o run --agent sim");
    for (line, parts) in [
        ("run nowhere", ["there is no run at nowhere", "run.json"]),
        (
            "run run run",
            ["two candidates are called 'run'", "NAME=run"],
        ),
        ("run run#", ["'run#' names no agent", "run#AGENT"]),
        ("run x=", ["'x=' names no run", "[NAME=]RUN"]),
        (
            "run x=run --metric nothing",
            ["the metric 'nothing'", "'reward'"],
        ),
        (
            "run x=run --metric rewrad",
            ["the metric 'rewrad'", "did you mean `reward`?"],
        ),
        ("run x=run --metric reward --all", ["--metric", "--all"]),
        ("run x=run --confidence 95", ["--confidence", "0.95"]),
        ("run x=run --task-key a..b", ["--task-key", "a.b"]),
    ] {
        let ended = folder.rollstream("compare").args(line).run();
        ended.exited_with(2).complaining(&parts);
    }
    let ended = folder
        .rollstream("compare run x=run --flips no/where.parquet")
        .run();
    ended
        .exited_with(1)
        .complaining(&["cannot write 'no/where.parquet'"]);
}

#[test]
fn files_of_nemo_gym_are_compared_as_the_runs_that_they_stand_for() {
    let folder = Folder::with_tasks(sums(6));
    for (name, seed) in [("a", 1), ("b", 2)] {
        let collect = format!(
            "collect -i tasks.jsonl --agent sim --num-repeats 2 -q --gym-output {name}.jsonl"
        );
        let config = format!("[sim]\nseed = {seed}\n");
        folder.write("rollstream.toml", &config);
        let command = folder.rollstream(&collect);
        command
            .env("ROLLSTREAM_CONFIG", "rollstream.toml")
            .run()
            .succeeded();
    }
    let compared = |line: &str| -> Value {
        let ended = folder.rollstream(line).run().succeeded();
        serde_json::from_str(&ended.stdout).unwrap()
    };
    // All but what they are called.
    let found = |report: &Value| {
        let mut rows = report["comparisons"].clone();
        for row in rows.as_array_mut().unwrap() {
            row.as_object_mut().unwrap().remove("candidate");
        }
        rows
    };
    let runs = compared("compare a b --json");
    let files = "compare --baseline a.jsonl --candidates b.jsonl --json";
    assert_eq!(found(&compared(files)), found(&runs));
    // Without the runs, what NeMo Gym would have left is compared, and reports are written where they are asked for.
    for name in ["a", "b"] {
        std::fs::remove_dir_all(folder.path(name)).unwrap();
    }
    let imported = compared(&format!("{files} --agent sim -o out"));
    assert_eq!(found(&imported), found(&runs));
    assert_eq!(imported["base"]["place"], "a.jsonl");
    assert_eq!(folder.json("out/compare_report.json"), imported);
    assert!(folder.read("out/compare_report.md").contains("reward"));
    let keys = "compare +baseline_rollouts_jsonl_fpath=a.jsonl +candidate_rollouts_jsonl_fpaths=[b.jsonl] --json";
    assert_eq!(found(&compared(keys)), found(&runs));
    let metrics = "compare --baseline a.jsonl --candidates b.jsonl --baseline-agg-metrics x.json";
    let refused = folder.rollstream(metrics).run().exited_with(2);
    refused.complaining(&["not their aggregate metrics"]);
}
