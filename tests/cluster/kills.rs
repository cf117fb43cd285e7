//! Executors that are killed at random moments.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rollstream::sim::{Draws, Latency, SimConfig};

use super::executors::executors;
use super::sweeps::{ROLLOUTS, Scene};
use crate::common::{instant, signal};

/// Of each executor.
const CALLS: u64 = 2;

/// When a rollout was asked for again, as seconds since 1970.
const AGAIN: &str =
    "SELECT date_part('epoch', min(later.dispatched_at)) FROM attempts lost JOIN attempts later
    ON lost.task_index = later.task_index AND lost.rollout_index = later.rollout_index
    WHERE lost.outcome = 'interrupted' AND later.attempt > lost.attempt";

/// What followed from a kill.
#[derive(Debug, Clone, Copy)]
pub struct Killed {
    /// Rollouts that were asked for again.
    pub again: u64,
    /// The time until the first of them was.
    pub until_again: Option<Duration>,
}

/// Kills one of three executors after a random number of requests. Whatever is wrong afterwards is a panic.
pub fn run(seed: u64) -> Killed {
    let mut draws = Draws::keyed(seed, &[ROLLOUTS]);
    let scene = Scene::new(SimConfig {
        latency: Latency::Fixed(Duration::from_millis(50)),
        ..instant(["sim"])
    });
    let options = format!("--cluster local:3 --concurrency {}", 3 * CALLS);
    let running = scene.collect("run", &options).start();
    scene.until_asked(1 + draws.below(ROLLOUTS as usize) as u64);
    // The last may have ended with the sweep.
    let executors = executors(running.pid());
    let victim = executors.get(draws.below(3));
    let killed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    victim.iter().for_each(|pid| signal("KILL", **pid));
    running.end().succeeded();
    scene.has_every_rollout_once("run");
    let query = "SELECT count(*) FROM attempts WHERE outcome = 'interrupted'";
    let interrupted: u64 = scene.folder.sql("run", query)[0].parse().unwrap();
    let again = scene.agents.requests() - ROLLOUTS;
    assert!(
        again <= interrupted && interrupted <= 2 * CALLS,
        "{seed}: {again} of {interrupted}"
    );
    let asked_again: Option<f64> = scene.folder.sql("run", AGAIN)[0].parse().ok();
    let after = |asked: f64| Duration::from_secs_f64(asked).saturating_sub(killed);
    Killed {
        again,
        until_again: asked_again.map(after),
    }
}

#[test]
fn executors_killed_at_any_moment_lose_nothing() {
    for seed in 0..4 {
        let Killed { again, until_again } = run(seed);
        assert!(again == 0 || until_again.is_some(), "{seed}");
    }
}
