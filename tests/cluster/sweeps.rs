//! A sweep on local executors, from its begin to its end, and how it ends early.

use std::collections::BTreeSet;
use std::time::Duration;

use rollstream::sim::{Latency, SimConfig};
use serde_json::{Value, json};

use crate::common::{Folder, Program, Simulated, instant, sums, until};

pub const TASKS: u64 = 40;
pub const REPEATS: u64 = 4;
pub const ROLLOUTS: u64 = TASKS * REPEATS;

/// Tasks, and an agent that is asked for them.
pub struct Scene {
    pub folder: Folder,
    pub agents: Simulated,
}

impl Scene {
    pub fn new(config: SimConfig) -> Self {
        Self {
            folder: Folder::with_tasks(sums(TASKS)),
            agents: Simulated::start(config),
        }
    }

    /// The agent takes a while, so that things can happen to the sweep.
    pub fn slow() -> Self {
        Self::new(SimConfig {
            latency: Latency::Fixed(Duration::from_millis(100)),
            ..instant(["sim"])
        })
    }

    pub fn collect(&self, run: &str, options: &str) -> Program {
        let program = self.folder.rollstream("collect -i tasks.jsonl --agent sim");
        let program = program.args(&format!("--num-repeats {REPEATS} -o {run}"));
        program.args(&self.agents.options()).args(options)
    }

    /// Waits until the agent was asked for so many rollouts.
    #[track_caller]
    pub fn until_asked(&self, requests: u64) {
        until("the agent is not asked", || {
            self.agents.requests() >= requests
        });
    }

    /// Every rollout is in the run, once.
    #[track_caller]
    pub fn has_every_rollout_once(&self, run: &str) {
        let rows = self.folder.landed(run);
        let key = |row: &Value| (row["task_index"].as_u64(), row["rollout_index"].as_u64());
        let keys: Vec<_> = rows.iter().map(key).collect();
        let all = (0..TASKS).flat_map(|task| (0..REPEATS).map(move |n| (Some(task), Some(n))));
        assert_eq!(keys, all.collect::<Vec<_>>());
        let record = self.folder.json(&format!("{run}/run.json"));
        assert_eq!(record["state"], "finished");
        assert_eq!(record["rollouts"]["done"], ROLLOUTS);
    }

    /// Every rollout is in the run once, and what was asked again is on record as interrupted: what `calls` in flight had
    /// not saved, which is themselves and the answers that they had just got.
    #[track_caller]
    pub fn has_asked_again_at_most(&self, run: &str, calls: u64) {
        self.has_every_rollout_once(run);
        let query = "SELECT count(*) FROM attempts WHERE outcome = 'interrupted'";
        let interrupted: u64 = self.folder.sql(run, query)[0].parse().unwrap();
        assert!((1..=2 * calls).contains(&interrupted), "{interrupted}");
        let asked = self.agents.requests();
        assert!(
            (ROLLOUTS..=ROLLOUTS + interrupted).contains(&asked),
            "{asked}"
        );
    }

    /// The shards in which attempts were made, by the names of the parts.
    pub fn shards(&self, run: &str) -> BTreeSet<String> {
        let files = self.folder.content();
        let parts = files
            .iter()
            .filter(|name| name.starts_with(&format!("{run}/attempts/")));
        parts
            .filter_map(|name| {
                let (_, shard) = name.rsplit_once("-s")?;
                Some(shard.split('-').next()?.to_owned())
            })
            .collect()
    }
}

/// What a rollout is, without the times that it took.
fn timeless(mut row: Value) -> Value {
    for time in ["started_at", "latency_ms"] {
        row.as_object_mut().unwrap().remove(time);
    }
    row
}

#[test]
fn a_cluster_collects_what_one_process_does() {
    let scene = Scene::new(instant(["sim"]));
    scene.collect("alone", "").run().succeeded();
    // No part is small beside so little, so that each keeps the name of its shard.
    let ended = scene.collect("together", "--cluster local:2 --part-size 4KiB");
    ended.run().succeeded();
    scene.has_every_rollout_once("together");
    assert_eq!(scene.agents.requests(), 2 * ROLLOUTS);
    assert_eq!(
        scene.shards("together").len(),
        16,
        "{:?}",
        scene.folder.content()
    );

    let rows = |run: &str| scene.folder.landed(run).into_iter().map(timeless);
    assert!(rows("alone").eq(rows("together")));
    let metrics = |run: &str| scene.folder.read(&format!("{run}/aggregate_metrics.json"));
    assert_eq!(metrics("alone"), metrics("together"));
    // Executors leave the settings of the sweep alone, and nothing else behind.
    let settings = |run: &str| scene.folder.json(&format!("{run}/run.json"))["settings"].take();
    let of_the_driver = settings("together");
    assert_eq!(of_the_driver["input"], json!(["tasks.jsonl"]));
    assert_eq!(
        of_the_driver["concurrency"],
        settings("alone")["concurrency"]
    );
    let left = scene.folder.content().into_iter();
    let left: Vec<String> = left
        .filter(|name| name.contains("/cluster/") && name.ends_with(".json"))
        .collect();
    assert_eq!(left, [""; 0]);
}

#[test]
fn executors_share_the_limit_of_calls() {
    let scene = Scene::slow();
    let ended = scene
        .collect("run", "--cluster local:2 --concurrency 8")
        .run();
    ended.succeeded();
    scene.has_every_rollout_once("run");
    let most = scene.agents.counts("sim").max_in_flight;
    assert!(most <= 8, "{most}");
}

#[test]
fn limits_below_the_number_of_slots_are_refused() {
    let scene = Scene::new(instant(["sim"]));
    let refused = scene
        .collect("run", "--cluster local:2 --concurrency 1")
        .run();
    refused
        .exited_with(2)
        .complaining(&["--concurrency 1", "2 slots"]);
    for (options, why) in [
        ("--cluster local:2 --shard 1/2", "--shard"),
        ("--cluster grpc://10.0.0.1:50050", "--insecure-network"),
        ("--cluster grpc://127.0.0.1:1", "--cluster-slots"),
        ("--cluster local:2 --cluster-slots 4", "a slot each"),
    ] {
        let refused = scene.collect("run", options).run();
        refused.exited_with(2).complaining(&[why]);
    }
    assert!(!scene.folder.has("run"));
}

#[test]
fn a_shard_whose_last_answer_is_late_holds_up_no_other() {
    let scene = Scene::new(SimConfig {
        fault_at: vec!["0:0:0=hang".parse().unwrap()],
        ..instant(["sim"])
    });
    let running = scene.collect("run", "--cluster local:1").start();
    // Task 0 is in the first of eight shards, and the executor has one slot.
    scene.until_asked(ROLLOUTS);
    running.signal("INT");
    running.until_it_says("waits for 1 call");
    running.signal("INT");
    running.end().exited_with(130);
    let record = scene.folder.json("run/run.json");
    assert_eq!(record["rollouts"]["pending"], 1);
    scene.folder.rollstream("resume run").run().succeeded();
    scene.has_every_rollout_once("run");
    assert_eq!(scene.agents.requests(), ROLLOUTS + 1);
}

#[test]
fn an_interrupted_sweep_drains_and_resumes_without_the_cluster() {
    let scene = Scene::slow();
    let running = scene
        .collect("run", "--cluster local:2 --concurrency 4")
        .start();
    scene.until_asked(20);
    running.signal("INT");
    running.end().exited_with(130);
    let asked = scene.agents.requests();
    assert!(asked < ROLLOUTS, "{asked}");
    let record = scene.folder.json("run/run.json");
    assert_eq!(record["state"], "interrupted");
    assert_eq!(record["rollouts"]["done"], asked);
    scene.folder.rollstream("resume run").run().succeeded();
    scene.has_every_rollout_once("run");
    assert_eq!(scene.agents.requests(), ROLLOUTS);
}

#[test]
fn a_second_interrupt_drops_the_calls_in_flight() {
    let scene = Scene::new(SimConfig {
        latency: Latency::Fixed(Duration::from_secs(3600)),
        ..instant(["sim"])
    });
    let running = scene
        .collect("run", "--cluster local:2 --concurrency 4")
        .start();
    until("an executor is idle", || {
        scene.agents.counts("sim").in_flight == 4
    });
    running.signal("INT");
    running.until_it_says("waits for 4 calls");
    running.signal("INT");
    running.end().exited_with(130);
    assert_eq!(scene.agents.abandoned(), 4);
    assert_eq!(scene.agents.requests(), 4);
    let record = scene.folder.json("run/run.json");
    assert_eq!(record["state"], "interrupted");
    assert_eq!(record["rollouts"]["pending"], ROLLOUTS);
}

#[test]
fn too_many_failures_of_all_executors_together_stop_the_sweep() {
    let scene = Scene::new(SimConfig {
        faults: rollstream::sim::FaultRates([("bad_request_400".parse().unwrap(), 1.0)].into()),
        latency: Latency::Fixed(Duration::from_millis(100)),
        ..instant(["sim"])
    });
    for (limit, least) in [("--max-failures 8", 8), ("--max-error-rate 0.5", 1)] {
        let before = scene.agents.requests();
        let options = "--cluster local:2 --concurrency 4 --data-budget 1 --overwrite";
        let stopped = scene.collect("run", options).args(limit).run();
        stopped.exited_with(4);
        let requests = scene.agents.requests() - before;
        assert!((least..ROLLOUTS).contains(&requests), "{limit}: {requests}");
    }
}

#[test]
fn a_deadline_ends_the_sweep_on_all_executors_and_it_resumes() {
    let scene = Scene::new(instant(["sim"]));
    // More than a minute without the deadline.
    let options = "--cluster local:2 --concurrency 2 --requests-per-second 2 --deadline 3s";
    scene.collect("run", options).run().exited_with(4);
    assert_eq!(scene.folder.json("run/run.json")["state"], "stopped");
    scene.collect("run", "--resume").run().succeeded();
    scene.has_every_rollout_once("run");
    assert_eq!(scene.agents.requests(), ROLLOUTS);
}
