//! Executors that die, that lose their driver, and that lack what they need.

use std::fs;
use std::time::Duration;

use rollstream::sim::{AgentConfig, Latency, SimConfig};
use serde_json::json;

use super::road::Road;
use super::sweeps::{REPEATS, ROLLOUTS, Scene};
use crate::common::{Program, Running, instant, signal, until};

/// The processes below a driver that run as this executor.
pub fn executors(driver: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest = stat.rsplit_once(')').map(|(_, rest)| rest.to_owned());
        let rest = rest.unwrap_or_default();
        let mut words = rest.split_whitespace();
        let is_alive = !matches!(words.next(), None | Some("Z" | "X"));
        is_alive && words.next() == Some(&driver.to_string())
    })
    .collect()
}

/// Waits until a process has ended.
#[track_caller]
fn until_gone(pid: u32) {
    let stat = || fs::read_to_string(format!("/proc/{pid}/stat"));
    until("a process does not end", || {
        stat().map_or(true, |stat| stat.contains(") Z"))
    });
}

#[test]
fn the_shards_of_a_killed_executor_run_elsewhere() {
    let scene = Scene::new(SimConfig {
        latency: Latency::Fixed(Duration::from_millis(500)),
        ..instant(["sim"])
    });
    let running = scene
        .collect("run", "--cluster local:3 --concurrency 6")
        .start();
    // Each executor has its two calls, which last longer than it takes to kill it.
    until("an executor is idle", || {
        scene.agents.counts("sim").in_flight == 6
    });
    let of_driver = executors(running.pid());
    assert_eq!(of_driver.len(), 3);
    signal("KILL", of_driver[0]);
    let said = running.until_it_says("has ended: others go on with its shards");
    assert!(said.contains("SIGKILL"), "{said}");
    running.end().succeeded();
    scene.has_asked_again_at_most("run", 2);
}

#[test]
fn executors_end_with_their_driver_and_the_run_resumes_without_them() {
    let scene = Scene::slow();
    let running = scene
        .collect("run", "--cluster local:2 --concurrency 4")
        .start();
    scene.until_asked(30);
    let of_driver = executors(running.pid());
    assert_eq!(of_driver.len(), 2);
    running.signal("KILL");
    running.end();
    of_driver.into_iter().for_each(until_gone);
    scene.folder.rollstream("resume run").run().succeeded();
    scene.has_asked_again_at_most("run", 4);
}

#[test]
fn a_new_driver_waits_for_the_executors_of_one_that_was_killed() {
    let scene = Scene::slow();
    let options = "--cluster local:2 --concurrency 4";
    let running = scene.collect("run", options).start();
    scene.until_asked(30);
    running.signal("KILL");
    running.end();
    let resumed = scene.collect("run", options).args("--resume").start();
    resumed.until_it_says("waiting to see whether it lives");
    resumed.end().succeeded();
    scene.has_every_rollout_once("run");
}

#[test]
fn a_sweep_whose_executors_were_all_killed_resumes_on_others() {
    let scene = Scene::slow();
    let options = "--cluster local:2 --concurrency 4";
    let running = scene.collect("run", options).start();
    scene.until_asked(30);
    executors(running.pid())
        .into_iter()
        .for_each(|pid| signal("KILL", pid));
    running.end().exited_with(3);
    scene
        .collect("run", options)
        .args("--resume")
        .run()
        .succeeded();
    scene.has_asked_again_at_most("run", 4);
}

/// A scheduler at a port, 0 for a free one, and its address.
pub fn scheduler(scene: &Scene, port: &str) -> (Running, String) {
    let line = format!("cluster scheduler --bind 127.0.0.1:{port}");
    let running = scene.folder.rollstream(&line).start();
    let said = running.until_it_says("listens at grpc://");
    let address = said.split_whitespace().last().unwrap().to_owned();
    (running, address)
}

pub fn executor(scene: &Scene, address: &str, name: &str) -> Program {
    let line = format!("cluster executor --scheduler {address} --slots 2 --name {name}");
    scene.folder.rollstream(&line)
}

#[test]
fn an_executor_without_the_secret_withdraws_and_another_goes_on() {
    let scene = Scene::new(instant(["sim"]));
    let (_scheduler, address) = scheduler(&scene, "0");
    let lacking = executor(&scene, &address, "lacking").start();
    let options = format!("--cluster {address} --cluster-slots 2 --bearer-token-env TOKEN");
    let driver = scene
        .collect("run", &options)
        .env("TOKEN", "secret-5e1f")
        .start();
    let said = driver.until_it_says("executor 'lacking' withdraws");
    assert!(said.contains("TOKEN"), "{said}");
    let withdrawn = lacking.end().exited_with(1).stderr;
    assert!(
        withdrawn.contains("error: the executor 'lacking' withdraws")
            && withdrawn.contains("TOKEN")
    );
    // The objects of the sweep are there until it ends.
    assert!(scene.folder.has("run/cluster"));
    assert_eq!(scene.folder.holding("secret-5e1f"), [""; 0]);
    let other = executor(&scene, &address, "other")
        .env("TOKEN", "secret-5e1f")
        .start();
    let ended = driver.end().succeeded();
    assert!(!ended.stderr.contains("secret-5e1f"));
    scene.has_every_rollout_once("run");
    assert_eq!(scene.agents.requests(), ROLLOUTS);
    other.signal("TERM");
    other.end().succeeded();
    assert_eq!(scene.folder.holding("secret-5e1f"), [""; 0]);
}

#[test]
fn an_executor_of_another_version_withdraws_and_another_goes_on() {
    let scene = Scene::new(instant(["sim"]));
    let (_scheduler, address) = scheduler(&scene, "0");
    let options = format!("--cluster {address} --cluster-slots 2");
    let driver = scene.collect("run", &options).start();
    // What a driver of another version would have written.
    let spec = || {
        let files = scene.folder.content();
        files
            .into_iter()
            .find(|name| name.starts_with("run/cluster/") && name.ends_with("/spec.json"))
    };
    until("there is no spec", || spec().is_some());
    let spec = spec().unwrap();
    let own = scene.folder.read(&spec);
    let mut others = scene.folder.json(&spec);
    others["version"] = "0.0.1".into();
    others["settings"] = json!({"of": "another version"});
    scene.folder.write(&spec, &others.to_string());
    let old = executor(&scene, &address, "old").start();
    let said = driver.until_it_says("executor 'old' withdraws");
    assert!(said.contains("0.0.1"), "{said}");
    let withdrawn = old.end().exited_with(1).stderr;
    assert!(withdrawn.contains("use the same version"), "{withdrawn}");
    scene.folder.write(&spec, &own);
    let _other = executor(&scene, &address, "other").start();
    driver.end().succeeded();
    scene.has_every_rollout_once("run");
    assert_eq!(scene.agents.requests(), ROLLOUTS);
}

#[test]
fn a_scheduler_that_is_killed_and_started_again_and_again_loses_nothing() {
    let scene = Scene::new(SimConfig {
        latency: Latency::Fixed(Duration::from_millis(500)),
        ..instant(["sim"])
    });
    let (mut running, address) = scheduler(&scene, "0");
    let (_, port) = address.rsplit_once(':').unwrap();
    let _executors = ["a", "b"].map(|name| executor(&scene, &address, name).start());
    let options = format!("--cluster {address} --cluster-slots 4 --concurrency 4");
    let driver = scene.collect("run", &options).start();
    // More often than a job that changes nothing is submitted again.
    for time in 1..=5 {
        scene.until_asked(time * 20);
        running.signal("KILL");
        running.end();
        if time == 1 {
            driver.until_it_says("cannot ask the scheduler");
        }
        running = scheduler(&scene, port).0;
    }
    driver.end().succeeded();
    scene.has_every_rollout_once("run");
    assert_eq!(scene.agents.requests(), ROLLOUTS);
}

#[test]
fn a_driver_waits_for_a_scheduler_that_is_out_of_reach_when_the_plan_is_sent() {
    let scene = Scene::slow();
    let (_scheduler, address) = scheduler(&scene, "0");
    let road = Road::to(address.trim_start_matches("grpc://").parse().unwrap());
    let _executor = executor(&scene, &address, "a").start();
    let start = |address: &str, options: &str| {
        let cluster = format!("--cluster {address} --cluster-slots 2 --concurrency 2 --lease 3s");
        let driver = scene.collect("run", &cluster);
        driver.args(options).start()
    };
    let killed = start(&address, "");
    scene.until_asked(20);
    killed.signal("KILL");
    killed.end();
    let driver = start(&format!("grpc://{}", road.address()), "--resume");
    driver.until_it_says("waiting to see whether it lives");
    road.close();
    driver.until_it_says("cannot send the plan to the scheduler");
    road.open();
    driver.end().succeeded();
    scene.has_every_rollout_once("run");
    assert_eq!(scene.agents.requests(), ROLLOUTS);
}

#[test]
fn executors_elsewhere_stop_when_their_driver_is_silent() {
    let scene = Scene::new(SimConfig {
        latency: Latency::Fixed(Duration::from_millis(500)),
        ..instant(["sim"])
    });
    let (_scheduler, address) = scheduler(&scene, "0");
    let _executor = executor(&scene, &address, "a").start();
    let options = format!("--cluster {address} --cluster-slots 2 --concurrency 2 --lease 3s");
    let driver = scene.collect("run", &options).start();
    scene.until_asked(4);
    driver.signal("KILL");
    driver.end();
    let is_locked = || {
        let files = scene.folder.content();
        let mut locks = files.iter().filter(|name| name.starts_with("run/lock/"));
        locks.any(|name| name.ends_with(".json"))
    };
    until("the executor goes on", || !is_locked());
    // The whole would have taken a minute.
    assert!(scene.agents.requests() < ROLLOUTS);
    scene.folder.rollstream("resume run").run().succeeded();
    scene.has_every_rollout_once("run");
    assert_eq!(scene.agents.requests(), ROLLOUTS);
}

#[test]
fn a_run_whose_driver_was_killed_resumes_on_the_same_cluster_or_without_one() {
    let scene = Scene::slow();
    scene.collect("alone", "").run().succeeded();
    let (_scheduler, address) = scheduler(&scene, "0");
    let _executors = ["a", "b"].map(|name| executor(&scene, &address, name).start());
    let options = format!("--cluster {address} --cluster-slots 4 --concurrency 4 --lease 3s");
    let metrics = |run: &str| scene.folder.read(&format!("{run}/aggregate_metrics.json"));
    for (run, resumed) in [("there", options.as_str()), ("here", "--lease 3s")] {
        let before = scene.agents.requests();
        let driver = scene.collect(run, &options).start();
        scene.until_asked(before + 20);
        driver.signal("KILL");
        driver.end();
        let resume = || scene.collect(run, resumed).args("--resume").run();
        let mut ended = resume();
        // One process does not wait for executors that have not noticed yet, and a driver does.
        until("the executors go on", || {
            let is_locked = ended.stderr.contains("is locked");
            if is_locked {
                assert!(run == "here", "{}", ended.stderr);
                ended = resume();
            }
            !is_locked
        });
        ended.succeeded();
        scene.has_every_rollout_once(run);
        assert_eq!(metrics(run), metrics("alone"));
        // Executors that hear no driver end the calls that they have.
        assert_eq!(scene.agents.requests(), before + ROLLOUTS);
    }
}

#[test]
fn a_sweep_ends_though_another_has_the_slots_that_it_lent() {
    let latency = |seconds| AgentConfig {
        latency: Some(Latency::Fixed(Duration::from_secs(seconds))),
        ..AgentConfig::default()
    };
    let scene = Scene::new(SimConfig {
        agents: [
            ("sim".to_owned(), latency(3)),
            ("slow".to_owned(), latency(3600)),
        ]
        .into(),
        ..SimConfig::default()
    });
    let (_scheduler, address) = scheduler(&scene, "0");
    let _executor = executor(&scene, &address, "a").start();
    let options = format!("--cluster {address} --cluster-slots 2 --limit 4");
    let first = scene.collect("first", &options).start();
    until("not all is sent", || {
        scene.agents.counts("sim").in_flight == 4 * REPEATS
    });
    // It can't send all that it has.
    let slow = "collect -i tasks.jsonl --agent slow -o second --num-repeats 4 --concurrency 2";
    let slow = scene.folder.rollstream(slow).args(&options);
    let second = slow.args(&scene.agents.options()).start();
    first.end().succeeded();
    let record = scene.folder.json("first/run.json");
    assert_eq!(record["rollouts"]["done"], 4 * REPEATS);
    second.signal("KILL");
    second.end();
}

#[test]
fn a_second_driver_is_refused_and_the_first_goes_on() {
    let scene = Scene::slow();
    let first = scene
        .collect("run", "--cluster local:2 --concurrency 2")
        .start();
    scene.until_asked(10);
    let second = scene
        .collect("run", "--cluster local:2 --concurrency 2 --resume")
        .run();
    let said = second.exited_with(2).stderr;
    assert!(said.contains("run has a driver"), "{said}");
    first.end().succeeded();
    scene.has_every_rollout_once("run");
    assert_eq!(scene.agents.requests(), ROLLOUTS);
}

#[test]
fn a_scheduler_on_a_network_must_be_asked_for() {
    let scene = Scene::new(instant(["sim"]));
    let refused = scene
        .folder
        .rollstream("cluster scheduler --bind 0.0.0.0:0")
        .run();
    refused.exited_with(2).complaining(&["--insecure-network"]);
    let refused = executor(&scene, "grpc://10.0.0.1:50050", "a").run();
    refused.exited_with(2).complaining(&["--insecure-network"]);
}
