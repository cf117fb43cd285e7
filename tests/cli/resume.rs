//! `rollstream resume` and `rollstream ls`: going on with a run that has its settings on record, and finding runs.

use std::fs::File;

use serde_json::{Value, json};

use crate::common::{Folder, Simulated, instant, sums};

#[test]
fn a_run_goes_on_with_what_it_has_on_record() {
    let simulated = Simulated::start(instant(["quick"]));
    let folder = Folder::with_tasks(sums(4));
    let url = simulated.sim().agent_url("quick").unwrap();
    folder
        .rollstream("collect -i tasks.jsonl -a quick --num-repeats 2 -o runs/a -q --concurrency 3")
        .arg("--agent-url")
        .arg(format!("quick={url}"))
        .run()
        .succeeded();
    let before = folder.json("runs/a/run.json");
    // The input is not read again.
    std::fs::remove_file(folder.path("tasks.jsonl")).unwrap();
    let ended = folder.rollstream("resume runs/a").run().succeeded();
    assert!(
        ended.stdout.contains("8 of 8 rollouts done"),
        "{}",
        ended.stdout
    );
    let after = folder.json("runs/a/run.json");
    assert_eq!(before["finished_at"], after["finished_at"]);
    assert_eq!(after["settings"]["concurrency"], 3);
    assert_eq!(after["settings"]["input"], json!(["tasks.jsonl"]));
    assert_eq!(simulated.requests(), 8);

    for table in ["rollouts", "attempts"] {
        std::fs::remove_dir_all(folder.path(&format!("runs/a/{table}"))).unwrap();
    }
    folder.rollstream("resume runs/a -q").run().succeeded();
    assert_eq!(simulated.requests(), 16);
    let again = folder.json("runs/a/run.json");
    assert_ne!(before["finished_at"], again["finished_at"]);
    assert_eq!(again["agents"], before["agents"]);
    folder
        .rollstream("resume runs/b")
        .run()
        .complaining(&["runs/b"]);
}

#[test]
fn damaged_tasks_are_read_again_from_the_input_on_record() {
    let folder = Folder::with_tasks(sums(4));
    folder
        .rollstream("collect -i tasks.jsonl -a sim -o run -q")
        .run()
        .succeeded();
    let tasks = folder.path("run/tasks/tasks.parquet");
    std::fs::write(&tasks, "PAR1").unwrap();
    let remedy = "`rollstream resume run`";
    let status = folder.rollstream("status run").run().exited_with(1);
    assert!(status.stderr.contains(remedy), "{}", status.stderr);
    let ended = folder.rollstream("resume run").run().succeeded();
    assert!(
        ended.stdout.contains("4 of 4 rollouts done"),
        "{}",
        ended.stdout
    );
    assert_eq!(folder.sql("run", "select count(*) from tasks"), ["4"]);
}

#[test]
fn a_simulated_agent_is_simulated_again() {
    let folder = Folder::with_tasks(sums(4));
    folder
        .rollstream("collect -i tasks.jsonl -a sim -o run -q --num-repeats 2")
        .run()
        .succeeded();
    for table in ["rollouts", "attempts"] {
        std::fs::remove_dir_all(folder.path(&format!("run/{table}"))).unwrap();
    }
    let ended = folder.rollstream("resume run").run().succeeded();
    assert!(
        ended.stdout.contains("8 of 8 rollouts done"),
        "{}",
        ended.stdout
    );
}

#[test]
fn the_runs_below_a_directory_are_listed() {
    let folder = Folder::with_tasks(sums(3));
    let collect = "collect -i tasks.jsonl --agent sim -q -o";
    folder
        .rollstream(collect)
        .args("runs/deep/b")
        .run()
        .succeeded();
    folder
        .rollstream(collect)
        .args("runs/a --limit 1")
        .run()
        .succeeded();
    let listed = folder.rollstream("ls runs").run().succeeded().stdout;
    let lines: Vec<Vec<&str>> = listed
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines[0][..3], ["run", "state", "done"]);
    assert_eq!(lines[1][..5], ["runs/deep/b", "finished", "3", "of", "3"]);
    assert_eq!(lines[2][..5], ["runs/a", "finished", "1", "of", "1"]);
    assert_eq!(lines.len(), 3, "{listed}");
    let lines = folder.rollstream("ls --json").run().succeeded().stdout;
    let places: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["place"].clone())
        .collect();
    assert_eq!(places, ["runs/deep/b", "runs/a"]);
    let none = folder.rollstream("ls tmp").run().succeeded();
    assert_eq!(none.stdout, "");
    assert!(none.stderr.contains("there is no run in tmp"));
    let nowhere = folder.rollstream("ls nowhere").run();
    nowhere.exited_with(2).complaining(&["nowhere"]);
}

#[test]
fn tasks_come_from_the_standard_input() {
    let folder = Folder::with_tasks(sums(3));
    let input = File::open(folder.path("tasks.jsonl")).unwrap();
    folder
        .rollstream("collect --input - --agent sim -o run -q")
        .stdin(input)
        .run()
        .succeeded();
    assert_eq!(
        folder.sql(
            "run",
            "select source_file, source_line from tasks order by 2"
        ),
        ["stdin,1", "stdin,2", "stdin,3"]
    );
    folder.rollstream("resume run -q").run().succeeded();
    let broken = folder.write("broken.jsonl", "{\n");
    let ended = folder
        .rollstream("collect -i - --agent sim -o other")
        .stdin(File::open(broken).unwrap())
        .run();
    ended.exited_with(2).complaining(&["'stdin' at line 1"]);
}

#[test]
fn the_table_of_rollouts_becomes_one_file() {
    let folder = Folder::with_tasks(sums(3));
    folder
        .rollstream("collect -i tasks.jsonl --agent sim --num-repeats 2 -o run -q")
        .run()
        .succeeded();
    folder
        .rollstream("export run -o out/r.csv -q")
        .run()
        .succeeded();
    let csv = folder.read("out/r.csv");
    assert_eq!(csv.lines().count(), 7);
    assert!(
        csv.starts_with("task_index,rollout_index,agent_name,"),
        "{csv}"
    );
    assert!(!csv.contains("output_text"), "{csv}");
    folder
        .rollstream("export run -o out/r.csv")
        .run()
        .exited_with(2)
        .complaining(&["out/r.csv", "--overwrite"]);
    folder
        .rollstream("export run -o out --format parquet")
        .run()
        .succeeded();
    assert!(folder.has("out/run.parquet"));
    let lines = folder
        .rollstream("export run -o - --format jsonl")
        .run()
        .succeeded()
        .stdout;
    let rows: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows.len(), 6);
    assert!(rows[5]["result"].as_str().unwrap().contains("output_text"));
    assert_eq!(rows[5]["task_index"], 2);
}
