//! How a run is doing, as `rollstream status` says it: of one that is over, one that was killed, and one that is
//! being collected.

use std::time::{Duration, Instant};

use rollstream::sim::{AgentConfig, FaultKind, FaultRates, Latency, SimConfig};
use serde_json::{Value, json};

use crate::common::{Folder, Running, Simulated, instant, sums};

/// Far longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// 6 tasks for an agent that answers at once, 4 for another; two rollouts each.
fn folder(other: &str) -> Folder {
    let quick = sums(6).into_iter().map(|task| task.for_agent("quick"));
    let others = sums(4).into_iter().map(|task| task.for_agent(other));
    Folder::with_tasks(quick.chain(others))
}

fn quick_and(other: &str, config: AgentConfig) -> SimConfig {
    let mut all = instant(["quick"]);
    all.agents.insert(other.into(), config);
    all
}

/// An agent that holds every call.
fn slow() -> AgentConfig {
    AgentConfig {
        latency: Some(Latency::Fixed(Duration::from_secs(3600))),
        ..AgentConfig::default()
    }
}

const COLLECT: &str = "collect -i tasks.jsonl --num-repeats 2 -o run --concurrency 100";

fn status(folder: &Folder) -> Value {
    let ended = folder.rollstream("status run --json").run().succeeded();
    let status = serde_json::from_str(&ended.stdout).unwrap();
    adds_up(&status);
    status
}

/// Every planned rollout is done, failed or pending, every attempt has an outcome, and the agents make up the total.
#[track_caller]
fn adds_up(status: &Value) {
    let agents = status["agents"].as_array().unwrap();
    let n = |figures: &Value, key: &str| figures[key].as_u64().unwrap();
    for figures in agents.iter().chain([&status["total"]]) {
        let parts = n(figures, "done") + n(figures, "failed") + n(figures, "pending");
        assert_eq!(n(figures, "planned"), parts, "{status:#}");
        let outcomes = figures["outcomes"].as_object().unwrap().values();
        let attempts: u64 = outcomes.map(|outcome| n(outcome, "attempts")).sum();
        assert_eq!(n(figures, "attempts"), attempts, "{status:#}");
    }
    for key in ["planned", "done", "failed", "pending", "attempts"] {
        let sum: u64 = agents.iter().map(|agent| n(agent, key)).sum();
        assert_eq!(n(&status["total"], key), sum, "{key}: {status:#}");
    }
}

fn agent<'a>(status: &'a Value, name: &str) -> &'a Value {
    let agents = status["agents"].as_array().unwrap();
    agents
        .iter()
        .find(|agent| agent["agent_name"] == name)
        .unwrap()
}

/// Asks for the status until so many rollouts are done.
fn until_done(rollouts: u64, folder: &Folder, running: &mut Running) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let ended = folder.rollstream("status run --json").run();
        // Until the run has its record, there is none.
        if ended.code == Some(0) {
            let status: Value = serde_json::from_str(&ended.stdout).unwrap();
            adds_up(&status);
            if status["total"]["done"] == rollouts {
                return;
            }
        }
        assert!(
            running.is_running() && Instant::now() < deadline,
            "{rollouts} rollouts are never done: {ended:#?}"
        );
    }
}

#[test]
fn a_finished_run_says_who_failed_and_why() {
    let failing = AgentConfig {
        faults: Some(FaultRates([(FaultKind::Error500, 1.0)].into())),
        ..AgentConfig::default()
    };
    let (folder, sim) = (
        folder("failing"),
        Simulated::start(quick_and("failing", failing)),
    );
    let collect = folder.rollstream(COLLECT).args(&sim.options());
    collect.args("--infra-budget 1 -q").run().exited_with(3);

    let status = status(&folder);
    assert_eq!(
        (&status["state"], &status["place"]),
        (&json!("finished"), &json!("run"))
    );
    let (quick, failing) = (agent(&status, "quick"), agent(&status, "failing"));
    let counted = sim.counts("quick");
    assert_eq!(
        (&quick["planned"], &quick["done"]),
        (&json!(12), &json!(12))
    );
    assert_eq!(quick["outcomes"]["ok"]["attempts"], counted.ok);
    assert_eq!(quick["errors"], json!([]));
    let rewards = "select avg(reward) from rollouts";
    let mean: f64 = folder.sql("run", rewards)[0].parse().unwrap();
    assert_eq!(quick["mean_reward"].as_f64(), Some(mean));

    let counted = sim.counts("failing").faults[&FaultKind::Error500];
    assert_eq!(
        (&failing["planned"], &failing["failed"]),
        (&json!(8), &json!(8))
    );
    assert_eq!(failing["failed_by_class"], json!({"infra": 8}));
    assert_eq!(
        failing["outcomes"]["infra"],
        json!({"attempts": counted, "http_statuses": {"500": counted}})
    );
    assert_eq!(failing["mean_reward"], Value::Null);
    let [error] = failing["errors"].as_array().unwrap().as_slice() else {
        panic!("{failing:#}");
    };
    assert_eq!(
        (&error["outcome"], &error["http_status"], &error["attempts"]),
        (&json!("infra"), &json!(500), &json!(counted))
    );
    assert!(
        error["error"].as_str().unwrap().contains("HTTP 500"),
        "{error}"
    );
    assert_eq!(status["total"]["attempts"], sim.requests());
    assert_eq!(status["total"]["eta_seconds"], Value::Null);
    assert_eq!(status["rate_window"]["is_current"], false);
    assert!(status["total"]["rollouts_per_second"].as_f64().unwrap() > 0.0);

    let ended = folder.rollstream("status run").run().succeeded();
    assert_eq!(ended.stderr, "");
    assert!(!ended.stdout.contains('\x1b'), "{}", ended.stdout);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(
        lines[0],
        "finished run: 12 of 20 rollouts done (60.0 %), 8 failed (8 infra), 0 pending"
    );
    let has = |parts: &[&str]| {
        lines.iter().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.join(" ").starts_with(&parts.join(" "))
        })
    };
    assert!(has(&["failing", "8", "0", "8", "0"]), "{}", ended.stdout);
    assert!(
        has(&["20 attempts:", "12 ok,", "8 infra (8 HTTP 500)"]),
        "{}",
        ended.stdout
    );
    assert!(
        has(&["8 attempts of failing: the network or the server failed (HTTP 500): POST http://"]),
        "{}",
        ended.stdout
    );
}

#[test]
fn errors_are_cut_unless_the_whole_is_wanted() {
    let folder = Folder::with_tasks(sums(2));
    let sim = Simulated::start(instant(["sim"]));
    let agent = sim.sim().agent_url("sim").unwrap();
    let url = format!("--agent-url sim={agent}{}", "/nothing-here".repeat(30));
    let collect = "collect -i tasks.jsonl -a sim -o run --data-budget 1 --overwrite";
    let collect = |more: &str| {
        let ended = folder.rollstream(collect).args(&url).args(more).run();
        ended.exited_with(3).stdout
    };
    let status = |more: &str| {
        let status = folder.rollstream("status run").args(more).run();
        status.succeeded().stdout
    };
    for (cut, whole) in [(collect(""), collect("-v")), (status(""), status("-v"))] {
        let end = "nothing-here/run: HTTP 404 Not Found";
        assert!(
            cut.contains("… (--verbose shows all)\n") && !cut.contains(end),
            "{cut}"
        );
        assert!(
            !whole.contains("--verbose") && whole.contains(end),
            "{whole}"
        );
    }
}

#[test]
fn a_run_that_was_killed_has_died_and_says_what_is_left() {
    let (folder, sim) = (folder("slow"), Simulated::start(quick_and("slow", slow())));
    let mut running = folder.rollstream(COLLECT).args(&sim.options()).start();
    until_done(12, &folder, &mut running);
    running.signal("KILL");
    assert_eq!(running.end().code, None);
    assert_eq!(folder.json("run/run.json")["state"], "running");

    let killed = status(&folder);
    assert_eq!(killed["state"], "died");
    assert_eq!(
        (&killed["total"]["done"], &killed["total"]["pending"]),
        (&json!(12), &json!(8))
    );
    assert_eq!(agent(&killed, "slow")["pending"], 8);
    let locks = killed["locks"].as_array().unwrap();
    assert!(
        locks.iter().all(|lock| lock["alive"] == false),
        "{killed:#}"
    );
    let ended = folder.rollstream("status run --watch").run().succeeded();
    assert_eq!(ended.stdout.lines().count(), 1, "{}", ended.stdout);
    let ended = folder.rollstream("status run").run().succeeded();
    let remedy = "Nobody works on it; `rollstream resume run` goes on.";
    assert!(ended.stdout.contains(remedy), "{}", ended.stdout);
    let again = folder.rollstream(COLLECT).args(&sim.options()).run();
    again
        .exited_with(2)
        .complaining(&["already (died)", "`rollstream resume run`"]);

    let again = Simulated::start(instant(["quick", "slow"]));
    let resume = folder.rollstream(COLLECT).args(&again.options());
    resume.args("--resume -q").run().succeeded();
    let finished = status(&folder);
    assert_eq!(
        (&finished["state"], &finished["total"]["done"]),
        (&json!("finished"), &json!(20))
    );
}

#[test]
fn a_run_that_is_being_collected_is_running_and_its_lock_has_a_holder() {
    let (folder, sim) = (folder("slow"), Simulated::start(quick_and("slow", slow())));
    let mut running = folder.rollstream(COLLECT).args(&sim.options()).start();
    until_done(12, &folder, &mut running);

    let live = status(&folder);
    assert_eq!(live["state"], "running");
    assert_eq!(live["locks"].as_array().unwrap().len(), 1, "{live:#}");
    let lock = &live["locks"][0];
    assert_eq!(
        (&lock["alive"], &lock["scope"]),
        (&json!(true), &json!("the whole run"))
    );
    assert!(lock["pid"].as_u64() > Some(0), "{lock}");
    assert_eq!(live["rate_window"]["is_current"], true);
    assert_eq!(agent(&live, "slow")["in_flight"], 8);
    assert_eq!(agent(&live, "quick")["in_flight"], 0);
    let ended = folder.rollstream("status run").run().succeeded();
    let parts = [
        "running run: 12 of 20 rollouts done (60.0 %), 0 failed, 8 pending",
        "lock on the whole run: held by ",
    ];
    for part in parts {
        assert!(ended.stdout.contains(part), "{}", ended.stdout);
    }

    let watch = folder
        .rollstream("status run --watch --interval 1h")
        .start();
    watch.until_it_prints("\"state\":\"running\"");
    watch.signal("INT");
    watch.end().succeeded();
    assert!(running.is_running());
}

#[test]
fn a_watch_adds_up_while_parts_land_and_ends_with_the_run() {
    let quick = sums(300).into_iter().map(|task| task.for_agent("quick"));
    let slow_ones = sums(1).into_iter().map(|task| task.for_agent("slow"));
    let folder = Folder::with_tasks(quick.chain(slow_ones));
    let sim = Simulated::start(quick_and("slow", slow()));
    let mut running = folder
        .rollstream(COLLECT)
        .args("--part-size 50KB --concurrency 3")
        .args(&sim.options())
        .start();
    let deadline = Instant::now() + PATIENCE;
    while !folder.has("run/run.json") {
        assert!(running.is_running() && Instant::now() < deadline);
        std::thread::yield_now();
    }
    let watch = folder
        .rollstream("status run --watch --interval 10ms --json")
        .start();
    watch.until_it_prints("\"done\":600,");
    running.signal("INT");
    running.until_it_says("stopping");
    running.signal("INT");
    running.end().exited_with(130);

    let ended = watch.end().succeeded();
    let looks: Vec<Value> = ended
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    looks.iter().for_each(adds_up);
    let done: Vec<u64> = looks
        .iter()
        .map(|look| look["total"]["done"].as_u64().unwrap())
        .collect();
    assert!(done.is_sorted(), "{done:?}");
    let (last, before) = looks.split_last().unwrap();
    assert!(before.iter().all(|look| look["state"] == "running"));
    assert_eq!(last["state"], "interrupted");
    assert_eq!(
        (&last["total"]["done"], &last["total"]["pending"]),
        (&json!(600), &json!(2))
    );
    assert_eq!(last["total"]["outcomes"]["interrupted"]["attempts"], 2);
}

#[test]
fn a_place_that_is_no_run_is_said_to_be_none() {
    let folder = Folder::new();
    for options in ["", "--json", "--watch"] {
        let ended = folder.rollstream("status nowhere").args(options).run();
        ended
            .exited_with(2)
            .complaining(&["there is no run at nowhere", "run.json"]);
    }
    assert!(!folder.has("nowhere"));
    let ended = folder.rollstream("status run --interval 1s").run();
    ended.exited_with(2).complaining(&["--watch"]);
}

#[test]
fn metrics_that_are_older_than_the_rollouts_are_said_to_be() {
    let folder = Folder::with_tasks(sums(3));
    let old = |is_old: bool| {
        let status = folder.rollstream("status run").run().succeeded().stdout;
        assert_eq!(status.contains("Its metrics are older"), is_old, "{status}");
        let status = folder.rollstream("status run --json").run().succeeded();
        let status: Value = serde_json::from_str(&status.stdout).unwrap();
        assert_eq!(status["has_old_metrics"], is_old, "{status}");
    };
    let collect = "collect -i tasks.jsonl --agent sim -o run --num-repeats";
    folder.rollstream(collect).arg("1").run().succeeded();
    old(false);
    let more = folder.rollstream(collect);
    more.args("2 --extend --resume --disable-aggregation")
        .run()
        .succeeded();
    old(true);
    folder.rollstream("aggregate run").run().succeeded();
    old(false);
}
