//! Questions to one or several runs.

use std::process::Command;

use parquet::file::reader::{FileReader, SerializedFileReader};

use crate::common::{Folder, Program, sums, task};

/// Two runs, `a` of 2 tasks and `b` of 3, two rollouts each.
fn two_runs() -> Folder {
    let folder = Folder::with_tasks(sums(3));
    let collect = "collect -i tasks.jsonl --agent sim --num-repeats 2 -q -o";
    folder
        .rollstream(collect)
        .args("a --limit 2")
        .run()
        .succeeded();
    folder.rollstream(collect).args("b").run().succeeded();
    folder
}

fn answer(folder: &Folder, options: &str, query: &str) -> String {
    let ended = folder
        .rollstream("sql")
        .args(options)
        .arg("-c")
        .arg(query)
        .run()
        .succeeded();
    assert_eq!(ended.stderr, "");
    ended.stdout
}

const QUESTION: &str =
    "select * from (values (1, 'a,b', 0.5), (2, null, 1.0)) as t(n, text, x) order by n";

#[test]
fn every_format_gives_the_same_rows() {
    let folder = two_runs();
    let table = "+---+------+-----+\n| n | text | x   |\n+---+------+-----+\n| 1 | a,b  | 0.5 |\n\
                 | 2 | NULL | 1.0 |\n+---+------+-----+\n";
    assert_eq!(answer(&folder, "a", QUESTION), table);
    assert_eq!(answer(&folder, "a --format table", QUESTION), table);
    assert_eq!(
        answer(&folder, "a --format csv", QUESTION),
        "n,text,x\n1,\"a,b\",0.5\n2,,1.0\n"
    );
    let rows = [
        r#"{"n":1,"text":"a,b","x":0.5}"#,
        r#"{"n":2,"text":null,"x":1.0}"#,
    ];
    assert_eq!(
        answer(&folder, "a --format json", QUESTION),
        format!("[{}]\n", rows.join(","))
    );
    assert_eq!(
        answer(&folder, "a --format ndjson", QUESTION),
        format!("{}\n", rows.join("\n"))
    );

    assert_eq!(
        answer(&folder, "a --format parquet -o answer.parquet", QUESTION),
        ""
    );
    let file =
        SerializedFileReader::new(std::fs::File::open(folder.path("answer.parquet")).unwrap())
            .unwrap();
    let rows: Vec<String> = file
        .get_row_iter(None)
        .unwrap()
        .map(|row| row.unwrap().to_string())
        .collect();
    assert_eq!(
        rows,
        [
            "{n: 1, text: \"a,b\", x: 0.5}",
            "{n: 2, text: null, x: 1.0}"
        ]
    );
}

#[test]
fn an_answer_without_rows_is_one_in_every_format() {
    let folder = two_runs();
    let none = "select task_index from rollouts where false";
    assert!(answer(&folder, "a", none).contains("| task_index |"));
    assert_eq!(answer(&folder, "a --format csv", none), "task_index\n");
    assert_eq!(answer(&folder, "a --format json", none), "[]\n");
    assert_eq!(answer(&folder, "a --format ndjson", none), "");
    answer(&folder, "a --format parquet -o none.parquet", none);
    let file = SerializedFileReader::new(std::fs::File::open(folder.path("none.parquet")).unwrap())
        .unwrap();
    assert_eq!(file.metadata().file_metadata().num_rows(), 0);
}

#[test]
fn parquet_goes_down_a_pipe_too() {
    let folder = two_runs();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rollstream"));
    command
        .args(["sql", "a", "--format", "parquet", "-c", QUESTION])
        .current_dir(folder.path(""));
    let bytes = command.output().unwrap().stdout;
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
}

#[test]
fn several_runs_have_a_column_that_tells_them_apart() {
    let folder = two_runs();
    for table in ["rollouts", "attempts"] {
        let query = format!("select run, count(*) from {table} group by 1 order by 1");
        assert_eq!(folder.sql("a b", &query), ["a,4", "b,6"], "{table}");
    }
    assert_eq!(
        folder.sql(
            "a b",
            "select run, count(*) from tasks group by 1 order by 1"
        ),
        ["a,2", "b,3"]
    );
    let ended = folder
        .rollstream("sql a -c")
        .arg("select run from rollouts")
        .run();
    ended.exited_with(1).complaining(&["run"]);
}

#[test]
fn every_metric_is_a_column() {
    let folder = two_runs();
    let columns =
        "select column_name from information_schema.columns where table_name = 'rollouts'";
    let columns = folder.sql("a", columns);
    for column in [
        "task_index",
        "agent_name",
        "reward",
        "accuracy",
        "turns",
        "output_tokens",
        "metrics",
        "result",
    ] {
        assert_eq!(
            columns.iter().filter(|name| **name == column).count(),
            1,
            "{column}: {columns:?}"
        );
    }
    let same = "select count(*) from rollouts where accuracy = metrics['accuracy'] and turns >= 1";
    assert_eq!(folder.sql("a", same), ["4"]);
}

#[test]
fn a_metric_called_like_a_column_keeps_a_name() {
    let folder = Folder::new();
    // The simulated agent echoes the row, numbers and all.
    folder.write(
        "tasks.jsonl",
        r#"{"responses_create_params": {"input": "2 + 2?"}, "run": 7, "latency_ms": 8, "a/b \"c\"": 9}"#,
    );
    let collect = "collect -i tasks.jsonl --agent sim -q -o a";
    folder.rollstream(collect).run().succeeded();
    let query = r#"select metric_run, metric_latency_ms, "a/b ""c""", latency_ms = 8 as same from rollouts"#;
    let row = answer(&folder, "a --format csv", query);
    assert_eq!(row.lines().nth(1), Some("7.0,8.0,9.0,false"));
}

#[test]
fn a_metric_that_only_one_run_has_is_null_in_the_other() {
    let folder = two_runs();
    folder.tasks(
        "rated.jsonl",
        [task("Why?").answered_by(1).with("rating", 7)],
    );
    folder
        .rollstream("collect -i rated.jsonl --agent sim -q -o rated")
        .run()
        .succeeded();
    let query = "select run, count(rating), max(rating) from rollouts group by 1 order by 1";
    assert_eq!(folder.sql("a rated", query), ["a,0,", "rated,1,7.0"]);
}

#[test]
fn the_question_can_be_in_a_file_and_the_answer_too() {
    let folder = two_runs();
    folder.write(
        "question.sql",
        "-- How many?\nSELECT count(*) AS n\nFROM rollouts\n",
    );
    let ended = folder
        .rollstream("sql a -f question.sql --format csv --output-file answer.csv")
        .run()
        .succeeded();
    assert_eq!(ended.stdout, "");
    assert_eq!(folder.read("answer.csv"), "n\n4\n");
}

#[test]
fn a_column_that_a_join_merges_needs_no_table_in_a_condition() {
    let folder = two_runs();
    let direct = folder.sql("a", "select count(*) from rollouts where task_index = 1");
    assert_ne!(direct, ["0"]);
    for query in [
        "select count(*) from rollouts join tasks using (task_index) where task_index = 1",
        "select count(*) from rollouts r left join tasks t using (task_index) where 1 = task_index",
        "select count(*) from (select * from rollouts) as r join tasks using (task_index)
         where task_index in (select task_index from attempts where task_index < 2) and task_index > 0",
        "with found as (select * from a.rollouts inner join a.tasks using (task_index) where task_index = 1)
         select count(*) from found",
    ] {
        assert_eq!(folder.sql("a=a", query), direct, "{query}");
    }
    let several = "select 1 from rollouts join tasks using (task_index) where agent_name = 'x'";
    let ended = folder.rollstream("sql a -c").arg(several).run();
    let hint = "the column 'agent_name' is in several tables; write TABLE.agent_name, such as rollouts.agent_name";
    ended.exited_with(1).complaining(&[hint]);
}

#[test]
fn bad_questions_are_answered_with_what_is_wrong() {
    let folder = two_runs();
    let refused = |query: &str, parts: &[&str]| {
        folder
            .rollstream("sql a -c")
            .arg(query)
            .run()
            .exited_with(1)
            .complaining(parts);
    };
    refused(
        "selec 1",
        &["expected an SQL statement, found selec (line 1, column 1)"],
    );
    refused(
        "select rewrd from rollouts",
        &["there is no column 'rewrd'; did you mean `reward`?"],
    );
    refused(
        "select * from rolouts",
        &["there is no table 'rolouts'; did you mean `rollouts`?"],
    );
    refused(
        "select * from zzz",
        &["there is no table 'zzz'; there are ", "groups", "pass_at_k"],
    );
    refused(
        "select avgg(reward) from rollouts",
        &["there is no function 'avgg'; did you mean `avg`?"],
    );
    refused(
        "select sum(agent_name) from rollouts",
        &["there is no function sum(Utf8View); there are sum(Decimal), "],
    );
    refused(
        "select 1 from tasks where request->>'difficulty' = 'hard'",
        &["`->>` binds weaker", "(request->>'field') = 'value'"],
    );
    let ended = folder
        .rollstream("sql a b -c")
        .arg("select * from b.rolouts");
    ended.run().complaining(&["did you mean `b.rollouts`?"]);
    for (line, parts) in [
        (
            "sql a --param resample=2 -c 1",
            ["no such parameter", "`resamples`"],
        ),
        ("metrics spred", ["no metric family 'spred'", "`spread`"]),
        (
            "aggregate a --family coverge",
            ["no metric family 'coverge'", "`coverage`"],
        ),
    ] {
        folder
            .rollstream(line)
            .run()
            .exited_with(2)
            .complaining(&parts);
    }
    for internal in ["datafusion", "Planning", "ParserError", "Error during"] {
        for query in [
            "selec 1",
            "select a",
            "select * from x",
            "select * from a.b.c.d.e",
        ] {
            let ended = folder.rollstream("sql a -c").arg(query).run();
            assert!(!ended.stderr.contains(internal), "{}", ended.stderr);
        }
    }
}

#[test]
fn the_name_of_the_output_file_tells_its_format() {
    let folder = two_runs();
    for (name, content) in [
        ("t.csv", "n\n1\n"),
        ("t.json", "[{\"n\":1}]\n"),
        ("t.jsonl", "{\"n\":1}\n"),
        ("T.NDJSON", "{\"n\":1}\n"),
        ("t.txt", "+---+\n| n |\n+---+\n| 1 |\n+---+\n"),
    ] {
        assert_eq!(
            answer(&folder, &format!("a -o {name}"), "select 1 as n"),
            ""
        );
        assert_eq!(folder.read(name), content, "{name}");
    }
    answer(&folder, "a -o t.parquet", "select 1 as n");
    assert_eq!(folder.parquet("t.parquet"), [serde_json::json!({"n": 1})]);
    answer(&folder, "a --format csv -o t.json", "select 1 as n");
    assert_eq!(folder.read("t.json"), "n\n1\n");
}

/// What a terminal of so many columns shows.
fn on_terminal(folder: &Folder, columns: u32, query: &str) -> String {
    let line = format!(
        r#"script -qec 'stty cols {columns} rows 24; "$ROLLSTREAM" sql a -c "$QUERY"' /dev/null"#
    );
    let program = Program::shell(&folder.path(""), &line);
    let program = program.env("ROLLSTREAM", env!("CARGO_BIN_EXE_rollstream"));
    let ended = program.env("QUERY", query).run().succeeded();
    ended.stdout.replace('\r', "")
}

#[test]
fn a_terminal_shows_a_table_that_fits_it() {
    let folder = two_runs();
    for columns in [120, 80, 50] {
        let shown = on_terminal(&folder, columns, "select * from rollouts");
        let widest = shown.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(columns as usize), "{widest:?}\n{shown}");
        assert!(
            shown.contains("| task_ |") && shown.contains("| reward |"),
            "{shown}"
        );
        assert!(
            shown.contains(" columns") && shown.contains("--format record"),
            "{shown}"
        );
    }
    let shown = on_terminal(&folder, 80, "select * from generate_series(1, 100)");
    let rows = shown.lines().filter(|line| line.starts_with("| "));
    assert_eq!(rows.count(), 40 + 1, "{shown}");
    assert!(
        shown.contains("the first 40 rows, there are more; "),
        "{shown}"
    );
    // What fits is shown as it is elsewhere.
    assert_eq!(
        on_terminal(&folder, 80, QUESTION),
        answer(&folder, "a", QUESTION)
    );
}

#[test]
fn rows_are_shown_one_at_a_time() {
    let folder = two_runs();
    let shown = answer(&folder, "a --format record", QUESTION);
    let rows =
        "-- row 1 --\nn     1\ntext  a,b\nx     0.5\n-- row 2 --\nn     2\ntext  NULL\nx     1.0\n";
    assert_eq!(shown, rows);
    let script = folder.write(
        "script.sql",
        &format!("\\x\n{QUESTION};\n\\x off\n{QUESTION};\n"),
    );
    let script = std::fs::File::open(script).unwrap();
    let ended = folder.rollstream("sql a").stdin(script).run().succeeded();
    assert_eq!(
        ended.stdout,
        format!("{rows}{}", answer(&folder, "a", QUESTION))
    );
}

#[test]
fn groups_are_a_table_also_of_runs_that_have_none() {
    let folder = two_runs();
    assert_eq!(folder.sql("a", "select count(*) from groups"), ["0"]);
    let of_both = "select count(*) from groups union all select count(*) from b.groups";
    assert_eq!(folder.sql("a b", of_both), ["0", "0"]);
    assert_eq!(folder.sql("a b", "select count(run) from groups"), ["0"]);
}

#[test]
fn a_place_that_is_no_run_is_said_to_be_none() {
    let folder = two_runs();
    std::fs::create_dir(folder.path("empty")).unwrap();
    for place in ["nowhere", "empty"] {
        let ended = folder
            .rollstream("sql a")
            .args(place)
            .args("-c 1")
            .run()
            .exited_with(2);
        ended.complaining(&[&format!("there is no run at {place}"), "run.json"]);
    }
    assert!(!folder.has("nowhere"));
}

#[test]
fn paths_lead_into_answers_and_requests() {
    let folder = two_runs();
    let query = "select distinct json_get_str(request, 'agent_ref', 'name') as agent, \
                 result->'response'->>'object' as object, \
                 json_get_float(result, 'reward') = reward as same \
                 from rollouts join tasks using (task_index)";
    assert_eq!(
        answer(&folder, "a --format csv", query),
        "agent,object,same\nsim,response,true\n"
    );
}

#[test]
fn several_questions_are_answered_one_after_another() {
    let folder = two_runs();
    assert_eq!(
        answer(
            &folder,
            "a --format csv",
            "select 1 as n; -- and\nselect ';' as t;"
        ),
        "n\n1\nt\n;\n"
    );
    let ended = folder
        .rollstream("sql a --format parquet -o both.parquet -c")
        .arg("select 1; select 2")
        .run()
        .exited_with(2);
    ended.complaining(&["one answer"]);
    let ended = folder.rollstream("sql a -c").arg(" -- nothing").run();
    ended
        .exited_with(1)
        .complaining(&["there is no SQL statement"]);
}

#[test]
fn a_table_shows_no_more_rows_than_a_terminal_has_use_for() {
    let folder = two_runs();
    let numbers = "select * from generate_series(1, 1200)";
    let table = answer(&folder, "a", numbers);
    assert_eq!(table.lines().count(), 1000 + 5);
    let last = table.lines().last().unwrap();
    assert!(
        last.contains("the first 1,000 rows, there are more; --format csv"),
        "{last}"
    );
    let all = answer(&folder, "a --format csv", numbers);
    assert_eq!(all.lines().count(), 1201);
}

#[test]
fn questions_cannot_change_anything() {
    let folder = two_runs();
    for statement in [
        "create table t as select 1",
        "drop table rollouts",
        "insert into rollouts select * from rollouts",
        "copy rollouts to 'x.parquet'",
    ] {
        let ended = folder.rollstream("sql a -c").arg(statement).run();
        ended
            .exited_with(1)
            .complaining(&["only queries are supported"]);
    }
    assert!(!folder.has("x.parquet"));
    for statement in ["explain select 1", "show tables", "describe rollouts"] {
        assert!(!answer(&folder, "a", statement).is_empty());
    }
}
