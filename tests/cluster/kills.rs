//! Executors that are killed at random moments.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rollstream::sim::{Draws, Latency, SimConfig};

use super::executors::executors;
use super::machines::Machines;
use super::sweeps::{ROLLOUTS, Scene};
use crate::common::{instant, signal};

/// Of each executor of this machine.
const CALLS: u64 = 2;

/// What a machine asks for before it has copied the answer: the call, a second, and the way to the store.
const UNSAVED: Duration = Duration::from_secs(2);

/// What followed from a kill.
#[derive(Debug, Clone, Copy)]
pub struct Killed {
    /// Rollouts that were asked for again.
    pub again: u64,
    /// The time until the first of them was.
    pub until_again: Option<Duration>,
    /// The time from the first request for one of them to the kill, the longest.
    pub unsaved: Duration,
}

/// Kills one of three executors of this machine after a random number of requests. Whatever is wrong afterwards is a panic.
pub fn run(seed: u64) -> Killed {
    let mut draws = Draws::keyed(seed, &[ROLLOUTS]);
    let scene = scene(50);
    let options = format!("--cluster local:3 --concurrency {}", 3 * CALLS);
    let running = scene.collect("run", &options).start();
    scene.until_asked(1 + draws.below(ROLLOUTS as usize) as u64);
    // The last may have ended with the sweep.
    let executors = executors(running.pid());
    let victim = executors.get(draws.below(3));
    let at = SystemTime::now();
    victim.iter().for_each(|pid| signal("KILL", **pid));
    running.end().succeeded();
    scene.has_every_rollout_once("run");
    let killed = Killed::at(at, &scene);
    let query = "SELECT count(*) FROM attempts WHERE outcome = 'interrupted'";
    let interrupted: u64 = scene.folder.sql("run", query)[0].parse().unwrap();
    assert!(
        killed.again <= interrupted && interrupted <= 2 * CALLS,
        "{seed}: {killed:?}, {interrupted}"
    );
    killed
}

/// Kills one of three executors that share nothing but the store, and its disk is gone.
pub fn run_apart(seed: u64) -> Killed {
    let mut draws = Draws::keyed(seed, &[ROLLOUTS]);
    let machines = Machines::of(3, scene(200));
    let names = ["a", "b", "c"];
    let mut executors = Vec::from(names.map(|name| machines.executor(name).start()));
    let driver = machines.collect("--lease 3s").start();
    let requests = 1 + draws.below(ROLLOUTS as usize) as u64;
    machines.scene.until_asked(requests);
    let victim = draws.below(3);
    let at = SystemTime::now();
    machines.lose(names[victim], executors.remove(victim));
    driver.end().succeeded();
    machines.has_every_rollout_once();
    let killed = Killed::at(at, &machines.scene);
    assert!(killed.unsaved <= UNSAVED, "{seed}: {killed:?}");
    killed
}

/// The agent takes long enough for kills at any moment of a call.
fn scene(milliseconds: u64) -> Scene {
    Scene::new(SimConfig {
        latency: Latency::Fixed(Duration::from_millis(milliseconds)),
        ..instant(["sim"])
    })
}

impl Killed {
    /// By the agent's log.
    fn at(at: SystemTime, scene: &Scene) -> Self {
        let at = at.duration_since(UNIX_EPOCH).unwrap();
        let mut requests = scene.agents.sim().requests("sim").unwrap();
        requests.sort_by_key(|request| request.arrived_at_us);
        let mut first = BTreeMap::new();
        let mut killed = Self {
            again: 0,
            until_again: None,
            unsaved: Duration::ZERO,
        };
        for request in requests {
            let arrived = Duration::from_micros(request.arrived_at_us);
            match first.entry((request.task_index, request.rollout_index)) {
                Entry::Vacant(entry) => {
                    entry.insert(arrived);
                }
                Entry::Occupied(first) => {
                    killed.again += 1;
                    killed.until_again.get_or_insert(arrived.saturating_sub(at));
                    killed.unsaved = killed.unsaved.max(at.saturating_sub(*first.get()));
                }
            }
        }
        killed
    }
}

#[test]
fn executors_killed_at_any_moment_lose_nothing() {
    for seed in 0..4 {
        run(seed);
    }
}

#[test]
fn a_machine_lost_at_any_moment_takes_what_it_had_not_copied_and_nothing_else() {
    run_apart(1);
}
