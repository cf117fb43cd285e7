//! The metric families as tables.

use std::fs::File;

use parquet::file::reader::{FileReader, SerializedFileReader};

use crate::common::{Folder, sums, task};

/// A run of 5 tasks, three rollouts each, in several parts.
fn one_run() -> Folder {
    let folder = Folder::with_tasks(
        sums(4)
            .into_iter()
            .chain([task("Why?").answered_by(1).with("rating", 7)]),
    );
    folder
        .rollstream("collect -i tasks.jsonl --agent sim --num-repeats 3 -q -o run")
        .args("--part-size 1KiB")
        .run()
        .succeeded();
    folder
}

fn rows(folder: &Folder, file: &str) -> Vec<String> {
    let reader = SerializedFileReader::new(File::open(folder.path(file)).unwrap()).unwrap();
    let rows = reader.get_row_iter(None).unwrap();
    rows.map(|row| row.unwrap().to_string()).collect()
}

#[test]
fn every_family_holds_what_aggregate_writes() {
    let folder = one_run();
    folder
        .rollstream("aggregate run -q -o measured --answer-key response.id")
        .run()
        .succeeded();
    let files: Vec<String> = folder
        .content()
        .iter()
        .filter_map(|file| {
            file.strip_prefix("measured/metrics/")?
                .strip_suffix(".parquet")
        })
        .map(str::to_owned)
        .collect();
    for family in [
        "agent_statistics",
        "latency",
        "majority_at_k",
        "pass_at_k",
        "spread",
    ] {
        assert!(files.iter().any(|file| file == family), "{files:?}");
    }
    for family in files {
        folder
            .rollstream(
                "sql run --format parquet -o answer.parquet --param answer_key=response.id -c",
            )
            .arg(format!("SELECT * FROM {family}"))
            .run()
            .succeeded();
        let written = rows(&folder, &format!("measured/metrics/{family}.parquet"));
        assert!(!written.is_empty(), "{family}");
        assert_eq!(rows(&folder, "answer.parquet"), written, "{family}");
    }
}

#[test]
fn a_condition_gives_the_rows_that_meet_it() {
    let folder = one_run();
    for (table, condition) in [
        ("pass_at_k", "metric = 'reward' AND k > 1"),
        (
            "agent_statistics",
            "metric IN ('reward', 'turns') AND run_position >= 0",
        ),
        (
            "task_statistics",
            "task_index BETWEEN 1 AND 2 AND metric LIKE 'r%'",
        ),
        (
            "spread",
            "metric = 'reward' AND mean >= (SELECT min(mean) FROM runs WHERE metric = 'reward') - 1",
        ),
        ("scores", "metric = 'reward' AND task_index > 1"),
    ] {
        let all = format!("SELECT *, coalesce({condition}, false) AS wanted FROM {table}");
        let all = folder.sql("run", &all);
        let wanted: Vec<&str> = all
            .iter()
            .filter_map(|row| row.strip_suffix(",true"))
            .collect();
        assert!(!wanted.is_empty() && wanted.len() < all.len(), "{table}");
        let found = folder.sql("run", &format!("SELECT * FROM {table} WHERE {condition}"));
        assert_eq!(found, wanted, "{table}");
    }
}

#[test]
fn tables_are_joined_and_grouped_like_any() {
    let folder = one_run();
    let question = "SELECT scores.metric, count(*) AS tasks, min(pass_at_k.k) AS k FROM scores \
                    JOIN pass_at_k ON pass_at_k.metric = scores.metric \
                    JOIN agent_statistics AS a ON a.metric = scores.metric \
                    WHERE pass_at_k.k = 1 AND scores.metric IN ('rating', 'reward') GROUP BY 1 ORDER BY 1";
    assert_eq!(folder.sql("run", question), ["rating,1,1", "reward,5,1"]);
    assert_eq!(
        folder.sql("run", "SELECT planned, done, done_share FROM coverage"),
        ["15,15,1.0"]
    );
    assert_eq!(folder.sql("run", "SELECT count(*) FROM absent"), ["0"]);
    let question = "SELECT task_index, cardinality(answers) FROM answers WHERE task_index = 2";
    assert_eq!(
        folder.sql("run --param answer_key=reward", question),
        ["2,3"]
    );
}

#[test]
fn of_several_runs_each_has_its_own() {
    let folder = one_run();
    folder
        .rollstream("collect -i tasks.jsonl --agent sim -q -o other --limit 2")
        .run()
        .succeeded();
    let question = "SELECT (SELECT sum(planned) FROM run.coverage) AS run, (SELECT sum(planned) FROM other.coverage) AS other, \
                    (SELECT max(k) FROM run.pass_at_k) AS k, (SELECT max(k) FROM other.pass_at_k) AS other_k";
    assert_eq!(folder.sql("run other", question), ["15,2,3,1"]);
    let ended = folder
        .rollstream("sql run other -c")
        .arg("SELECT * FROM pass_at_k")
        .run();
    ended
        .exited_with(1)
        .complaining(&["there is no table 'pass_at_k'"]);
    let question = "SELECT count(*) FROM x.spread AS a JOIN spread AS b USING (agent_name, metric) \
                    WHERE a.metric = 'reward' AND a.mean = b.mean";
    assert_eq!(folder.sql("x=run", question), ["1"]);
}

#[test]
fn a_folder_adds_families_and_one_that_is_wrong_fails_alone() {
    let folder = one_run();
    std::fs::create_dir(folder.path("mine")).unwrap();
    folder.write(
        "mine/best.sql",
        "-- Best.\n-- Parameters:\n--   of = 'reward'   metric\nSELECT max(element) AS best FROM \
         (SELECT unnest(rollout_scores) AS element FROM scores WHERE metric = $of)",
    );
    folder.write("mine/wrong.sql", "SELECT rewrd FROM rollouts");
    let mine = "run --queries mine";
    assert_eq!(
        folder.sql(&format!("{mine} --param of=rating"), "SELECT * FROM best"),
        ["7.0"]
    );
    let ended = folder
        .rollstream("sql")
        .args(mine)
        .args("-c")
        .arg("SELECT * FROM wrong")
        .run();
    ended
        .exited_with(1)
        .complaining(&["'wrong'", "mine/wrong.sql", "rewrd"]);
    let listed = folder
        .rollstream("sql --format csv")
        .args(mine)
        .stdin(File::open(folder.write("list.sql", "\\d")).unwrap())
        .run()
        .succeeded()
        .stdout;
    for line in [
        "best,metric,1",
        "wrong,metric,",
        "pass_at_k,metric,14",
        "rollouts,view,",
    ] {
        assert!(
            listed.lines().any(|found| found.starts_with(line)),
            "{line}: {listed}"
        );
    }
}

#[test]
fn what_nobody_reads_is_not_computed() {
    let folder = one_run();
    // Whoever reads the rollouts fails from here on.
    for file in std::fs::read_dir(folder.path("run/rollouts")).unwrap() {
        let file = file.unwrap().path();
        let bytes = std::fs::read(&file).unwrap();
        // Only the first column: the names of metrics come from elsewhere.
        let damaged: Vec<u8> = bytes
            .iter()
            .enumerate()
            .map(|(at, byte)| if at > 3 && at < 24 { !byte } else { *byte })
            .collect();
        std::fs::write(&file, damaged).unwrap();
    }
    assert_eq!(folder.sql("run", "SELECT count(*) FROM tasks"), ["5"]);
    let listed = "SELECT count(*) FROM information_schema.columns WHERE table_name = 'spread'";
    assert_ne!(folder.sql("run", listed), ["0"]);
    assert_ne!(folder.sql("run", "EXPLAIN SELECT * FROM spread").len(), 0);
    folder
        .rollstream("sql run -c")
        .arg("SELECT * FROM spread")
        .run()
        .exited_with(1);
}
