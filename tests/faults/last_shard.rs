//! Shards that end one after the other: who has no work does none, and who ends last measures what all of them did.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rollstream::sim::{AgentChange, Latency, SimConfig};

use super::agents::{Agents, PATIENCE};
use super::ledger::Ledger;
use super::scene::{answers_are_right, quick, requests_are_on_record};
use crate::common::{Ended, Folder, Program, Running, sums};

/// A start and an end take a fraction of it.
const MOST_CPU: Duration = Duration::from_secs(5);

/// Clock ticks a second, as Linux counts processor time for everybody.
const TICKS: u64 = 100;

const REPEATS: u64 = 4;

/// A run that two processes share, each with agents of its own that answer alike.
struct Shared {
    folder: Folder,
    tasks: u64,
    config: SimConfig,
    agents: [Agents; 2],
}

impl Shared {
    /// The second one's agents take so long.
    fn new(tasks: u64, latency: Duration) -> Self {
        let slow = SimConfig {
            latency: Latency::Fixed(latency),
            ..quick()
        };
        Self {
            folder: Folder::with_tasks(sums(tasks)),
            tasks,
            agents: [quick(), slow].map(Agents::start),
            config: quick(),
        }
    }

    fn shard(&self, number: usize, options: &str) -> Program {
        let program = self.folder.rollstream(&format!(
            "collect -i tasks.jsonl --num-repeats {REPEATS} -o run --retry-backoff 1ms --agent sim \
             --shard {number}/2 {options}"
        ));
        program.args(&self.agents[number - 1].options())
    }

    /// It was counted whole, and measured.
    #[track_caller]
    fn is_finished(&self) {
        let rollouts = self.tasks * REPEATS;
        let run = self.folder.json("run/run.json");
        assert_eq!(
            run["rollouts"],
            serde_json::json!({"planned": rollouts, "done": rollouts, "failed": 0, "pending": 0})
        );
        assert_eq!(run["state"], "finished");
        let ledger = Ledger::read(&self.folder.path("run"));
        ledger.is_consistent();
        assert_eq!(ledger.rollouts.len() as u64, rollouts);
        answers_are_right(&self.config, &ledger);
        for agents in &self.agents {
            requests_are_on_record(agents, &ledger);
        }
        let metrics = self.folder.read("run/aggregate_metrics.json");
        assert!(metrics.contains("reward"), "{metrics}");
        let tables = fs::read_dir(self.folder.path("run/metrics")).unwrap();
        assert!(tables.count() > 0);
    }
}

/// Processor time of a process so far; none where it has gone.
fn cpu(process: &Running) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid())).ok()?;
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |field: usize| fields[field].parse::<u64>().unwrap();
    Some(Duration::from_millis(
        (ticks(11) + ticks(12)) * 1000 / TICKS,
    ))
}

/// Waits until `idle` ends, or until `other` does; it may not do work meanwhile.
#[track_caller]
fn ends_or_waits_without_work(mut idle: Running, other: &mut Running) -> Running {
    let deadline = Instant::now() + PATIENCE;
    while idle.is_running() && other.is_running() {
        let spent = cpu(&idle).unwrap_or_default();
        assert!(
            spent < MOST_CPU,
            "it has no work, and {spent:?} of processor time"
        );
        assert!(Instant::now() < deadline, "neither ends");
        // Only spares the processor.
        sleep(Duration::from_millis(5));
    }
    idle
}

#[track_caller]
fn ended_well(ended: Ended) {
    assert!(matches!(ended.code, Some(0 | 3)), "{ended:#?}");
}

#[test]
fn a_shard_without_work_does_none_while_another_works() {
    // The second one makes progress all the time, and takes long.
    let shared = Shared::new(250, Duration::from_millis(50));
    ended_well(shared.shard(1, "--concurrency 16").run());
    let mut other = shared.shard(2, "--concurrency 1").start();
    shared.agents[1].until("the other works", |agents| agents.num_requests() >= 3);

    let idle = shared.shard(1, "--resume").start();
    let idle = ends_or_waits_without_work(idle, &mut other);
    other.signal("INT");
    other.end().exited_with(130);
    ended_well(idle.end());
    shared
        .shard(2, "--resume --concurrency 64")
        .run()
        .succeeded();
    shared.is_finished();
}

#[test]
fn a_shard_that_is_interrupted_ends_while_another_works() {
    let shared = Shared::new(250, Duration::from_millis(50));
    let mut other = shared.shard(2, "--concurrency 1").start();
    shared.agents[1].until("the other works", |agents| agents.num_requests() >= 3);
    let latency = AgentChange {
        latency: Some(Latency::Fixed(Duration::from_millis(50))),
        ..AgentChange::default()
    };
    shared.agents[0].change("sim", latency);
    let stopped = shared.shard(1, "--concurrency 1").start();
    shared.agents[0].until("it works", |agents| agents.num_requests() >= 3);
    stopped.signal("INT");
    let stopped = ends_or_waits_without_work(stopped, &mut other);
    assert!(
        other.is_running(),
        "it was not heard before the other ended"
    );
    stopped.end().exited_with(130);
    other.signal("INT");
    other.end().exited_with(130);
}

/// The first shard begins and makes the run; which of them ends last is told.
fn one_after_the_other(first_ends_last: bool) {
    let shared = Shared::new(40, Duration::ZERO);
    let last = if first_ends_last { 0 } else { 1 };
    // Its agent is not there yet, and is waited for.
    shared.agents[last].set_down("sim", true);
    let creator = shared.shard(1, "").start();
    if last == 0 {
        creator.until_it_says("can't be reached");
    } else {
        shared.agents[0].until("it works", |agents| agents.num_requests() > 0);
    }
    let other = shared.shard(2, "").start();
    let (early, late) = if last == 0 {
        (other, creator)
    } else {
        other.until_it_says("can't be reached");
        (creator, other)
    };
    ended_well(early.end());
    shared.agents[last].set_down("sim", false);
    late.end().succeeded();
    shared.is_finished();
}

#[test]
fn the_shard_that_made_the_run_and_ends_last_measures_it() {
    one_after_the_other(true);
}

#[test]
fn a_shard_that_joined_and_ends_last_measures_the_run() {
    one_after_the_other(false);
}
