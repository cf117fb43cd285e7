//! A sweep that is stopped, and how it goes on.

use std::time::{Duration, Instant};

use rollstream::sim::{AgentConfig, Latency, SimConfig};

use crate::common::{Folder, Running, Simulated, instant, sums};

/// Far longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(120);

const COLLECT: &str = "collect -i tasks.jsonl --num-repeats 2 -o run --concurrency 100";

/// 6 tasks for an agent that answers at once, 4 for one that does not.
fn folder() -> Folder {
    let quick = sums(6).into_iter().map(|task| task.for_agent("quick"));
    let slow = sums(4).into_iter().map(|task| task.for_agent("slow"));
    Folder::with_tasks(quick.chain(slow))
}

fn quick_and_slow() -> Simulated {
    let slow = AgentConfig {
        latency: Some(Latency::Fixed(Duration::from_secs(3600))),
        ..AgentConfig::default()
    };
    let mut config = instant(["quick"]);
    config.agents.insert("slow".into(), slow);
    Simulated::start(config)
}

/// Asks the run that is being collected until it holds so many rollouts.
fn until_there_are(rollouts: usize, folder: &Folder, running: &mut Running) {
    let deadline = Instant::now() + PATIENCE;
    let count = || {
        folder
            .rollstream("sql run --format csv -c")
            .arg("select count(*) from rollouts")
            .run()
            .stdout
    };
    while count().lines().nth(1).and_then(|n| n.parse().ok()) < Some(rollouts) {
        assert!(
            running.is_running() && Instant::now() < deadline,
            "{rollouts} rollouts never show up"
        );
    }
}

/// Every rollout of the 10 tasks is there once.
fn all_are_there_once(folder: &Folder) {
    let query = "select count(*), count(distinct task_index * 2 + rollout_index), min(task_index), max(task_index) \
                 from rollouts";
    assert_eq!(folder.sql("run", query), ["20,20,0,9"]);
    let run = folder.json("run/run.json");
    assert_eq!(run["state"], "finished");
    assert_eq!(
        run["rollouts"],
        serde_json::json!({"planned": 20, "done": 20, "failed": 0, "pending": 0})
    );
}

#[test]
fn a_second_interrupt_drops_the_calls_in_flight_and_resume_makes_them_again() {
    let (folder, sim) = (folder(), quick_and_slow());
    let mut running = folder.rollstream(COLLECT).args(&sim.options()).start();
    until_there_are(12, &folder, &mut running);
    running.signal("INT");
    running.until_it_says("stopping");
    assert!(running.is_running());
    running.signal("INT");
    let ended = running.end().exited_with(130);
    assert!(ended.stdout.contains("interrupted in"), "{}", ended.stdout);
    assert!(
        ended
            .stdout
            .contains("12 of 20 rollouts done, 0 failed, 8 pending"),
        "{}",
        ended.stdout
    );
    assert!(
        ended.stdout.contains("rollstream resume run"),
        "{}",
        ended.stdout
    );
    let run = folder.json("run/run.json");
    assert_eq!(
        (&run["state"], &run["rollouts"]["pending"]),
        (&"interrupted".into(), &8.into())
    );
    let cut = "select outcome, terminal, count(*) from attempts group by 1, 2 order by 1";
    assert_eq!(
        folder.sql("run", cut),
        ["interrupted,false,8", "ok,false,12"]
    );

    let again = Simulated::start(instant(["quick", "slow"]));
    let ended = folder
        .rollstream(COLLECT)
        .args(&again.options())
        .args("--resume")
        .run()
        .succeeded();
    assert!(
        ended.stdout.contains("20 of 20 rollouts done"),
        "{}",
        ended.stdout
    );
    assert_eq!(again.requests(), 8);
    all_are_there_once(&folder);
}

#[test]
fn the_first_signal_waits_for_the_calls_in_flight() {
    let folder = Folder::with_tasks(sums(400));
    let config = SimConfig {
        latency: Latency::Fixed(Duration::from_millis(250)),
        ..instant(["sim"])
    };
    let sim = Simulated::start(config);
    let command = folder.rollstream("collect -i tasks.jsonl --agent sim -o run --concurrency 2");
    let mut running = command.args(&sim.options()).start();
    until_there_are(1, &folder, &mut running);
    running.signal("TERM");
    running.end().exited_with(130);
    assert_eq!(sim.abandoned(), 0);
    let requests = sim.requests();
    assert!(requests < 400, "it was not stopped");
    assert_eq!(
        folder.sql(
            "run",
            "select count(*) from rollouts where reward is not null"
        ),
        [requests.to_string()]
    );
    assert_eq!(
        folder.sql("run", "select count(*) from attempts where outcome <> 'ok'"),
        ["0"]
    );
}

#[test]
fn what_was_answered_survives_a_kill() {
    let (folder, sim) = (folder(), quick_and_slow());
    let mut running = folder.rollstream(COLLECT).args(&sim.options()).start();
    until_there_are(12, &folder, &mut running);
    running.signal("KILL");
    assert_eq!(running.end().code, None);
    assert_eq!(folder.json("run/run.json")["state"], "running");

    let again = Simulated::start(instant(["quick", "slow"]));
    folder
        .rollstream(COLLECT)
        .args(&again.options())
        .args("--resume")
        .run()
        .succeeded();
    assert_eq!(again.requests(), 8);
    all_are_there_once(&folder);
}
