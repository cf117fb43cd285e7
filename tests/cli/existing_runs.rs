//! What happens where there is a run already.

use std::fs;
use std::time::{Duration, SystemTime};

use crate::common::{Folder, Simulated, instant, sums};

const COLLECT: &str = "collect -i tasks.jsonl --agent sim -o run";

/// A finished run of 3 tasks, two rollouts each, and a simulation that has seen none of it.
fn finished() -> (Folder, Simulated) {
    let folder = Folder::with_tasks(sums(3));
    folder
        .rollstream(COLLECT)
        .args("--num-repeats 2 -q")
        .run()
        .succeeded();
    (folder, Simulated::start(instant(["sim"])))
}

#[test]
fn a_run_is_neither_continued_nor_replaced_unasked() {
    let (folder, sim) = finished();
    let before = (folder.content(), folder.read("run/run.json"));
    let ended = folder
        .rollstream(COLLECT)
        .args("--num-repeats 2")
        .args(&sim.options())
        .run();
    ended.exited_with(2).complaining(&[
        "there is a run at run",
        "already (finished)",
        "--resume",
        "--overwrite",
    ]);
    assert_eq!((folder.content(), folder.read("run/run.json")), before);
    assert_eq!(sim.requests(), 0);
}

#[test]
fn a_run_of_an_older_layout_is_refused_with_the_way_out() {
    let (folder, sim) = finished();
    let written = folder.read("run/run.json");
    let older = written.replace("\"schema_version\": 4", "\"schema_version\": 3");
    assert_ne!(older, written);
    folder.write("run/run.json", &older);
    let before = folder.content();
    let resume = format!("{COLLECT} --num-repeats 2 --resume {}", sim.options());
    for (command, code) in [
        (resume.as_str(), 2),
        ("status run", 1),
        ("aggregate run", 1),
        ("sql run -c select", 1),
    ] {
        let ended = folder.rollstream(command).run();
        ended.exited_with(code).complaining(&[
            "run.json",
            "schema version 3 is older than 4",
            "the rollstream that made it",
            "`export` can be imported here",
        ]);
    }
    assert_eq!(folder.content(), before);
    assert_eq!(folder.read("run/run.json"), older);
    assert_eq!(sim.requests(), 0);
}

#[test]
fn resuming_what_is_finished_sends_nothing() {
    let (folder, sim) = finished();
    let ended = folder
        .rollstream(COLLECT)
        .args("--num-repeats 2 --resume")
        .args(&sim.options())
        .run()
        .succeeded();
    assert!(
        ended.stdout.contains("6 of 6 rollouts done"),
        "{}",
        ended.stdout
    );
    assert_eq!(sim.requests(), 0);
    assert_eq!(folder.sql("run", "select count(*) from rollouts"), ["6"]);
}

#[test]
fn overwriting_replaces_the_run_whole() {
    let (folder, sim) = finished();
    folder.tasks("tasks.jsonl", sums(1));
    let plan = folder
        .rollstream("plan -i tasks.jsonl --agent sim -o run --num-repeats 4 --overwrite --json")
        .run();
    let plan: serde_json::Value = serde_json::from_str(&plan.succeeded().stdout).unwrap();
    assert_eq!(plan["num_pending"], 4);
    let ended = folder
        .rollstream(COLLECT)
        .args("--num-repeats 4 --overwrite")
        .args(&sim.options())
        .run()
        .succeeded();
    assert!(
        ended
            .stdout
            .contains("4 of 4 rollouts done, 0 failed, 0 pending"),
        "{}",
        ended.stdout
    );
    assert_eq!(sim.requests(), 4);
    let run = folder.json("run/run.json");
    assert_eq!(
        run["rollouts"],
        serde_json::json!({"planned": 4, "done": 4, "failed": 0, "pending": 0})
    );
    assert_eq!(
        folder.sql(
            "run",
            "select task_index, count(*) from rollouts group by 1"
        ),
        ["0,4"]
    );
    assert_eq!(folder.sql("run", "select count(*) from tasks"), ["1"]);
    assert_eq!(folder.sql("run", "select count(*) from attempts"), ["4"]);
}

#[test]
fn resuming_with_something_else_names_what_differs() {
    let (folder, sim) = finished();
    let before = (folder.content(), folder.read("run/run.json"));
    let refused = |options: &str, parts: &[&str]| {
        let command = folder
            .rollstream(COLLECT)
            .args("--resume")
            .args(&sim.options());
        let parts = [&["cannot resume run"], parts].concat();
        command
            .args(options)
            .run()
            .exited_with(2)
            .complaining(&parts);
        assert_eq!(
            (folder.content(), folder.read("run/run.json")),
            before,
            "{options}"
        );
        assert_eq!(sim.requests(), 0, "{options}");
    };
    refused("--num-repeats 3", &["'num_repeats' was 2 and is 3"]);
    refused(
        "--num-repeats 2 --temperature 0.5",
        &["'responses_create_params' was {} and is {\"temperature\":0.5}"],
    );
    refused("--num-repeats 2 --limit 1", &["'limit' was null and is 1"]);
    folder.tasks("tasks.jsonl", sums(4));
    refused("--num-repeats 2", &["'input' was ["]);
}

#[test]
fn resume_and_overwrite_exclude_each_other() {
    let (folder, _) = finished();
    let ended = folder
        .rollstream(COLLECT)
        .args("--num-repeats 2 --resume --overwrite")
        .run();
    ended
        .exited_with(2)
        .complaining(&["--resume", "--overwrite", "exclude each other"]);
}

#[test]
fn overwriting_leaves_files_alone_that_are_no_part_of_a_run() {
    let (folder, sim) = finished();
    folder.write("run/notes.txt", "mine");
    folder
        .rollstream(COLLECT)
        .args("--num-repeats 2 --overwrite")
        .args(&sim.options())
        .run()
        .succeeded();
    assert_eq!(folder.read("run/notes.txt"), "mine");
}

#[test]
fn answers_of_a_run_that_has_gone_are_not_counted_as_those_of_a_new_one() {
    let folder = Folder::with_tasks(sums(2));
    std::fs::create_dir_all(folder.path("run/journal/0123456789abcdef")).unwrap();
    folder.write(
        "run/journal/0123456789abcdef/0000000001-run-p00-00000.rows",
        "answers",
    );
    let ended = folder
        .rollstream("collect -i tasks.jsonl --agent sim -o run")
        .run();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("run/journal"), "{ended:?}");
    assert!(ended.stderr.contains("no run.json"), "{ended:?}");
    assert!(!folder.has("run/run.json"));
}

#[test]
fn a_finished_run_is_measured_again_only_if_more_has_landed_than_was_measured() {
    let folder = Folder::with_tasks(sums(3));
    let collect = "collect -q -i tasks.jsonl --agent sim -o run";
    let resume = || {
        let program = folder.rollstream(collect).args("--resume");
        program.run().succeeded();
        folder.read("run/aggregate_metrics.json")
    };
    folder.rollstream(collect).run().succeeded();
    let measured = folder.read("run/aggregate_metrics.json");
    folder.write("run/aggregate_metrics.json", "as it was left");
    assert_eq!(resume(), "as it was left");

    // As after a resume that was killed while it measured what it had landed.
    let parts = fs::read_dir(folder.path("run/rollouts")).unwrap();
    for part in parts {
        let part = fs::File::options().append(true).open(part.unwrap().path());
        let later = SystemTime::now() + Duration::from_secs(60);
        part.unwrap().set_modified(later).unwrap();
    }
    assert_eq!(resume(), measured);
}
