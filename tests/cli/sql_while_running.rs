//! Questions to a run that is still being collected: what was answered is there, once, whether it is still in the
//! journal or in a part.

use std::time::{Duration, Instant};

use rollstream::sim::{AgentConfig, Latency};

use crate::common::{Folder, Simulated, instant, sums, task};

#[test]
fn answers_can_be_asked_for_before_the_sweep_is_over() {
    let mut config = instant(["quick"]);
    let slow = AgentConfig {
        latency: Some(Latency::Fixed(Duration::from_secs(3600))),
        ..AgentConfig::default()
    };
    config.agents.insert("slow".into(), slow);
    let sim = Simulated::start(config);
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
