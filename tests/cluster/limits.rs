//! The limits of a sweep hold in sum, as the agent's log of requests says, while executors join and leave.

use std::time::Duration;

use rollstream::sim::{Latency, SimConfig};

use super::executors::{executor, scheduler};
use super::sweeps::{ROLLOUTS, Scene};
use crate::common::{instant, until};

/// Waits until so many calls are in flight.
#[track_caller]
fn until_in_flight(scene: &Scene, calls: u64) {
    until("an executor is idle", || {
        scene.agents.counts("sim").in_flight == calls
    });
}

/// The time from the first request to the last.
fn span(scene: &Scene) -> Duration {
    Duration::from_secs_f64(*arrivals(scene).last().unwrap())
}

#[test]
fn executors_that_join_and_leave_never_have_more_calls_in_flight_than_allowed() {
    let scene = Scene::slow();
    let (_scheduler, address) = scheduler(&scene, "0");
    let started = |name| executor(&scene, &address, name).start();
    let (first, second) = (started("first"), started("second"));
    let options = format!("--cluster {address} --cluster-slots 4 --concurrency 8 --lease 3s");
    let driver = scene.collect("run", &options).start();
    until_in_flight(&scene, 8);
    first.signal("KILL");
    first.end();
    let third = started("third");
    scene.until_asked(ROLLOUTS / 3);
    second.signal("TERM");
    second.end().succeeded();
    let _fourth = started("fourth");
    scene.until_asked(ROLLOUTS / 2);
    third.signal("KILL");
    third.end();
    let _fifth = started("fifth");
    driver.end().succeeded();
    scene.has_every_rollout_once("run");
    assert_eq!(scene.agents.counts("sim").max_in_flight, 8);
}

#[test]
fn an_executor_beyond_the_slots_waits_until_others_have_nothing_to_do() {
    let scene = Scene::slow();
    let (_scheduler, address) = scheduler(&scene, "0");
    let _executors = ["a", "b", "c"].map(|name| executor(&scene, &address, name).start());
    let options = format!("--cluster {address} --cluster-slots 4 --concurrency 4");
    let driver = scene.collect("run", &options).start();
    driver.until_it_says("waits, since others have the 4 slots of --cluster-slots");
    driver.end().succeeded();
    scene.has_every_rollout_once("run");
    assert_eq!(scene.agents.requests(), ROLLOUTS);
    assert_eq!(scene.agents.counts("sim").max_in_flight, 4);
}

#[test]
fn of_two_executors_of_one_name_the_second_withdraws() {
    let scene = Scene::slow();
    let (_scheduler, address) = scheduler(&scene, "0");
    let options = format!("--cluster {address} --cluster-slots 4 --concurrency 4");
    let driver = scene.collect("run", &options).start();
    let _first = executor(&scene, &address, "twin").start();
    until_in_flight(&scene, 2);
    let second = executor(&scene, &address, "twin").start();
    let withdrawn = second.end().exited_with(1).stderr;
    assert!(
        withdrawn.contains("give each its own --name"),
        "{withdrawn}"
    );
    driver.end().succeeded();
    scene.has_every_rollout_once("run");
    assert_eq!(scene.agents.requests(), ROLLOUTS);
    assert_eq!(scene.agents.counts("sim").max_in_flight, 2);
}

#[test]
fn adaptive_limits_begin_with_a_share_each() {
    let scene = Scene::new(SimConfig {
        latency: Latency::Fixed(Duration::from_secs(3600)),
        ..instant(["sim"])
    });
    let options = "--cluster local:2 --concurrency auto";
    let driver = scene.collect("run", options).start();
    until_in_flight(&scene, 16);
    driver.signal("INT");
    driver.until_it_says("waits for 16 calls");
    driver.signal("INT");
    driver.end().exited_with(130);
    assert_eq!(scene.agents.counts("sim").max_in_flight, 16);
}

#[test]
fn requests_per_second_hold_in_sum() {
    let scene = Scene::new(instant(["sim"]));
    let options = "--cluster local:2 --requests-per-second 40";
    scene.collect("run", options).run().succeeded();
    // All but the first of each executor waited for those before. The first may come late.
    let least = Duration::from_secs_f64((ROLLOUTS - 2) as f64 / 40.0 - 0.5);
    let span = span(&scene);
    assert!(span >= least, "{span:?}");
}

#[test]
fn tokens_per_minute_hold_in_sum() {
    let scene = Scene::new(SimConfig {
        input_tokens_spread: 0.0,
        output_tokens_spread: 0.0,
        ..instant(["sim"])
    });
    // Sixteen seconds' worth, of which ten may come at once.
    let tokens = ROLLOUTS * 800;
    let options = format!(
        "--cluster local:2 --concurrency 2 --tokens-per-minute {}",
        tokens * 60 / 16
    );
    scene.collect("run", &options).run().succeeded();
    let span = span(&scene);
    assert!(span >= Duration::from_secs(5), "{span:?}");
}

/// The times at which the agent was asked, in seconds after the first.
fn arrivals(scene: &Scene) -> Vec<f64> {
    let requests = scene.agents.sim().requests("sim").unwrap();
    let mut arrived: Vec<u64> = requests
        .iter()
        .map(|request| request.arrived_at_us)
        .collect();
    arrived.sort_unstable();
    let since = |at: &u64| (at - arrived[0]) as f64 / 1e6;
    arrived.iter().map(since).collect()
}

/// Executors of half of the slots each, of which each is replaced by another one in the course of the sweep.
fn replaced_one_after_the_other(scene: &Scene, limit: &str) {
    let (_scheduler, address) = scheduler(scene, "0");
    let started = |name| executor(scene, &address, name).start();
    let (first, second) = (started("first"), started("second"));
    let options = format!("--cluster {address} --cluster-slots 4 --concurrency 4 {limit}");
    let driver = scene.collect("run", &options).start();
    scene.until_asked(ROLLOUTS / 4);
    first.signal("TERM");
    first.end().succeeded();
    let _third = started("third");
    scene.until_asked(ROLLOUTS / 2);
    second.signal("TERM");
    second.end().succeeded();
    let _fourth = started("fourth");
    driver.end().succeeded();
    scene.has_every_rollout_once("run");
    assert_eq!(scene.agents.requests(), ROLLOUTS);
}

/// In no window were there more requests than it allows: `rate` per second, `burst` at once, and what one second allows,
/// by which a busy machine may be late.
#[track_caller]
fn holds_in_every_window(scene: &Scene, rate: f64, burst: f64) {
    let arrived = arrivals(scene);
    for (first, from) in arrived.iter().enumerate() {
        for (last, to) in arrived.iter().enumerate().skip(first) {
            let allowed = rate * (to - from + 1.0) + burst;
            let asked = last - first + 1;
            assert!(asked as f64 <= allowed, "{asked} from {from} to {to}");
        }
    }
}

#[test]
fn requests_per_second_hold_in_sum_while_executors_join_and_leave() {
    let scene = Scene::new(instant(["sim"]));
    replaced_one_after_the_other(&scene, "--requests-per-second 20");
    // The first of each executor does not wait.
    holds_in_every_window(&scene, 20.0, 4.0);
}

#[test]
fn tokens_per_minute_hold_in_sum_while_executors_join_and_leave() {
    let scene = Scene::new(SimConfig {
        input_tokens_spread: 0.0,
        output_tokens_spread: 0.0,
        ..instant(["sim"])
    });
    // Those of eight rollouts in a second.
    let limit = format!("--tokens-per-minute {}", 8 * 800 * 60);
    replaced_one_after_the_other(&scene, &limit);
    // Executors begin without a burst, which would be of 40 each. Nobody knows what their first calls take, and they save up
    // a little between shards.
    holds_in_every_window(&scene, 8.0, 40.0);
}

#[test]
fn a_pause_that_an_agent_asks_one_executor_for_is_kept_by_all() {
    let scene = Scene::new(SimConfig {
        fault_at: vec!["0:0:0=rate_limited_429".parse().unwrap()],
        retry_after: Duration::from_secs(3600),
        latency: Latency::Fixed(Duration::from_millis(500)),
        ..instant(["sim"])
    });
    let options = "--cluster local:2 --concurrency 2";
    let driver = scene.collect("run", options).start();
    let control = || {
        let files = scene.folder.content();
        let name = files.iter().find(|name| name.ends_with("/control.json"))?;
        serde_json::from_str::<serde_json::Value>(&scene.folder.read(name)).ok()
    };
    let beat = || control().map_or(0, |control| control["beat"].as_u64().unwrap());
    until("nobody is asked to pause", || {
        control().is_some_and(|control| control["paused"]["sim"].is_object())
    });
    // Executors look as often as the driver beats, every two seconds.
    let after = |beats: u64| {
        let then = beat() + beats;
        until("the driver is dead", || beat() >= then);
        scene.agents.requests()
    };
    let asked = after(4);
    assert_eq!(after(2), asked);
    assert!(asked < ROLLOUTS);
    driver.signal("INT");
    driver.end().exited_with(130);
}

#[test]
fn a_dispatch_budget_is_that_of_all_executors() {
    let scene = Scene::slow();
    let options = "--concurrency 2 --dispatch-budget-s 5 --drain-margin-s 1";
    let ended = scene.collect("alone", options).run();
    let code = ended.code.unwrap();
    let alone = scene.agents.requests();
    let ended = scene.collect("together", &format!("{options} --cluster local:2"));
    ended.run().exited_with(code);
    let together = scene.agents.requests() - alone;
    assert!((1..ROLLOUTS).contains(&together), "{together}");
    let record = scene.folder.json("together/run.json");
    assert_eq!(record["state"], "incomplete");
    assert_eq!(record["rollouts"]["done"], together);
    scene.collect("together", "--resume").run().succeeded();
    scene.has_every_rollout_once("together");
}
