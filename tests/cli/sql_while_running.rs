//! Questions to a run that is still being collected: what was answered is there, once, whether it is still in the
//! journal or in a part.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::common::{Folder, Simulated, quick_and_slow, sums, task};

#[test]
fn answers_can_be_asked_for_before_the_sweep_is_over() {
    let sim = Simulated::start(quick_and_slow());
    let quick = sums(5).into_iter().map(|task| task.for_agent("quick"));
    let folder = Folder::with_tasks(quick.chain([task("Will it ever end?").for_agent("slow")]));
    let mut running = folder
        .rollstream("collect -i tasks.jsonl -o run")
        .args(&sim.options())
        .start();

    let deadline = Instant::now() + Duration::from_secs(120);
    let ask = |query: &str| {
        folder
            .rollstream("sql run --format csv -c")
            .arg(query)
            .run()
    };
    loop {
        let ended = ask("select count(*) from rollouts");
        if ended.stdout == "count(*)\n5\n" {
            break;
        }
        // Until the run has its record, there is none.
        assert!(
            ended.code == Some(0) || ended.stderr.contains("there is no run at run"),
            "{ended:#?}"
        );
        assert!(
            running.is_running() && Instant::now() < deadline,
            "{ended:#?}"
        );
    }
    assert!(
        !folder
            .content()
            .iter()
            .any(|name| name.starts_with("run/rollouts/")),
        "it is in parts already"
    );
    let rows = ask(
        "select agent_name, count(*), count(accuracy), count(distinct task_index) from rollouts group by 1",
    );
    assert_eq!(rows.succeeded().stdout.lines().nth(1), Some("quick,5,5,5"));
    assert_eq!(
        folder.sql("run", "select outcome, count(*) from attempts group by 1"),
        ["ok,5"]
    );
    assert_eq!(folder.sql("run", "select count(*) from tasks"), ["6"]);
    assert_eq!(folder.json("run/run.json")["state"], "running");

    running.signal("INT");
    running.until_it_says("stopping");
    running.signal("INT");
    running.end().exited_with(130);
    assert_eq!(
        folder.sql(
            "run",
            "select count(*), count(distinct task_index) from rollouts"
        ),
        ["5,5"]
    );
}

#[test]
fn equal_questions_in_one_conversation_show_growth() {
    let collect = "collect -i tasks.jsonl --agent sim -q -o run";
    let folder = Folder::with_tasks(sums(2));
    folder
        .rollstream(collect)
        .args("--num-repeats 1")
        .run()
        .succeeded();
    let (input, mut questions) = std::io::pipe().unwrap();
    let asked = folder
        .rollstream("sql run --format csv")
        .stdin(input)
        .start();
    let mut ask = |question: &str| {
        writeln!(questions, "{question}").unwrap();
    };
    ask("select 'rows ' || count(*) from rollouts;");
    asked.until_it_prints("rows 2");

    folder
        .rollstream(collect)
        .args("--resume --extend --num-repeats 3")
        .run()
        .succeeded();
    ask("select 'rows ' || count(*) from rollouts;");
    asked.until_it_prints("rows 6");

    drop(questions);
    let ended = asked.end().succeeded();
    assert_eq!(ended.stderr, "");
}

#[test]
fn a_conversation_sees_the_journal_grow_with_its_metrics() {
    let sim = Simulated::start(quick_and_slow());
    let quick = sums(5).into_iter().map(|task| task.for_agent("quick"));
    let folder = Folder::with_tasks([task("Will it ever end?").for_agent("slow")]);
    let mut running = folder
        .rollstream("collect -i tasks.jsonl -o run")
        .args(&sim.options())
        .start();
    let deadline = Instant::now() + Duration::from_secs(120);
    while !folder.has("run/run.json") {
        assert!(running.is_running() && Instant::now() < deadline);
    }
    let (input, mut questions) = std::io::pipe().unwrap();
    let asked = folder
        .rollstream("sql run --format csv")
        .stdin(input)
        .start();
    writeln!(questions, "select 'columns ' || count(*) from information_schema.columns where table_name = 'rollouts';").unwrap();
    let before = asked.until_it_prints("columns 17");
    assert_eq!(before.trim(), "columns 17");

    running.signal("INT");
    running.until_it_says("stopping");
    running.signal("INT");
    running.end().exited_with(130);
    folder.tasks(
        "tasks.jsonl",
        [task("Will it ever end?").for_agent("slow")]
            .into_iter()
            .chain(quick),
    );
    let mut running = folder
        .rollstream("collect -i tasks.jsonl -o run --resume --extend")
        .args(&sim.options())
        .start();
    loop {
        writeln!(questions, "select 'rows ' || count(*) from rollouts;").unwrap();
        if asked.until_it_prints("rows ") == "rows 5\n" {
            break;
        }
        assert!(running.is_running() && Instant::now() < deadline);
    }
    assert!(
        !folder
            .content()
            .iter()
            .any(|name| name.starts_with("run/rollouts/")),
        "it is in parts already"
    );
    writeln!(
        questions,
        "select 'right ' || count(accuracy) from rollouts;"
    )
    .unwrap();
    asked.until_it_prints("right 5");
    drop(questions);
    asked.end().succeeded();
    running.signal("INT");
    running.until_it_says("stopping");
    running.signal("INT");
    running.end().exited_with(130);
}
