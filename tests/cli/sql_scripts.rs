//! Statements and commands that come down the standard input.

use std::fs::File;

use crate::common::{Ended, Folder, sums};

fn one_run() -> Folder {
    let folder = Folder::with_tasks(sums(2));
    folder
        .rollstream("collect -i tasks.jsonl --agent sim --num-repeats 2 -q -o run")
        .run()
        .succeeded();
    folder
}

fn run(folder: &Folder, options: &str, script: &str) -> Ended {
    let script = File::open(folder.write("script.sql", script)).unwrap();
    folder
        .rollstream("sql run")
        .args(options)
        .stdin(script)
        .run()
}

#[test]
fn statements_are_run_one_after_another() {
    let folder = one_run();
    let script =
        "-- How many?\nselect count(*) as n\n  from rollouts; select ';' as t;\n\nselect 3 as last";
    let ended = run(&folder, "--format csv", script).succeeded();
    assert_eq!(ended.stdout, "n\n4\nt\n;\nlast\n3\n");
    assert_eq!(ended.stderr, "");
    let ended = run(&folder, "", "").succeeded();
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("", ""));
}

#[test]
fn the_first_error_ends_a_script_with_its_exit_code_and_its_place() {
    let folder = one_run();
    let ended = run(
        &folder,
        "--format csv",
        "select 1 as n;\n\nselect 2;  selec 3;\nselect 4;\n",
    );
    let ended = ended.exited_with(1);
    assert_eq!(ended.stdout, "n\n1\nInt64(2)\n2\n");
    assert!(ended.stderr.starts_with("error: "), "{ended:?}");
    assert!(ended.stderr.contains("(line 3, column 12)"), "{ended:?}");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");

    let ended = run(&folder, "", "\\nosuch\nselect 1;");
    ended.exited_with(2).complaining(&["'\\nosuch'", "\\help"]);
    let ended = run(&folder, "", "select 'open;\n");
    ended.exited_with(1).complaining(&["Unterminated string"]);
}

#[test]
fn commands_work_in_scripts_with_either_sign() {
    let folder = one_run();
    let ended = run(
        &folder,
        "",
        "\\format csv\n.format ndjson\nselect 1 as n;\n\\quit\nselect 2;",
    );
    assert_eq!(ended.succeeded().stdout, "{\"n\":1}\n");

    let ended = run(
        &folder,
        "--format csv",
        ".timing\nselect 1 as n;\n\\timing\nselect 2 as n;",
    )
    .succeeded();
    assert_eq!(ended.stdout, "n\n1\nn\n2\n");
    let said: Vec<&str> = ended.stderr.lines().collect();
    assert!(
        matches!(said[..], ["timing is on", time, "timing is off"] if time.starts_with("1 row, ") && time.ends_with(" ms")),
        "{said:?}"
    );

    let ended = run(
        &folder,
        "",
        "\\limit 3\nselect * from generate_series(1, 4);\n\\limit 0\nselect * from generate_series(1, 2000);",
    );
    let table = ended.succeeded().stdout;
    assert_eq!(table.matches("there are more").count(), 1);
    assert_eq!(table.lines().count(), 3 + 5 + 2000 + 4);
}

#[test]
fn tables_and_columns_are_listed() {
    let folder = one_run();
    let listed = run(&folder, "--format csv", "\\d").succeeded().stdout;
    let lines: Vec<&str> = listed.lines().collect();
    assert_eq!(lines[0], "name,kind,columns");
    for table in ["attempts,view,20", "tasks,view,8"] {
        assert!(lines.contains(&table), "{listed}");
    }
    let listed = run(&folder, "--format csv", ".d ROLLOUTS")
        .succeeded()
        .stdout;
    for column in [
        "task_index,Int64,false",
        "accuracy,Float64,true",
        "metrics,\"Map(Utf8, Float64)\",true",
    ] {
        assert!(listed.lines().any(|line| line == column), "{listed}");
    }
    let ended = run(&folder, "", "\\d nothing");
    ended.exited_with(2).complaining(&["no table 'nothing'"]);
    let ended = run(&folder, "", "\\d rolouts");
    let meant = ["no table 'rolouts'; did you mean `rollouts`?"];
    ended.exited_with(2).complaining(&meant);
}

#[test]
fn functions_are_listed_and_explained() {
    let folder = one_run();
    let listed = run(&folder, "--format csv", "\\df").succeeded().stdout;
    for function in [
        "avg,aggregate,",
        "exact_sum,aggregate,",
        "json_get_str,scalar,",
    ] {
        assert!(
            listed.lines().any(|line| line.starts_with(function)),
            "{listed}"
        );
    }
    let explained = run(&folder, "", "\\df avg").succeeded().stdout;
    assert!(
        explained.starts_with("avg(expression): aggregate function\n"),
        "{explained}"
    );
    let ended = run(&folder, "", "\\df nothing");
    ended.exited_with(2).complaining(&["no function 'nothing'"]);
    let ended = run(&folder, "", "\\df avgg");
    let meant = ["no function 'avgg'; did you mean `avg`?"];
    ended.exited_with(2).complaining(&meant);
}

#[test]
fn a_reader_that_has_had_enough_ends_a_script() {
    let folder = one_run();
    let script = "select * from generate_series(1, 100000);\n".repeat(20);
    let script = File::open(folder.write("script.sql", &script)).unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_rollstream"));
    let mut child = command
        .args(["sql", "run", "--format", "csv"])
        .current_dir(folder.path(""))
        .stdin(script)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}
