//! Machines with disks of their own, whose run is on an S3 server: what becomes of a sweep when one of them is slow,
//! stopped, full, or cut off.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use rollstream::sim::SimConfig;
use serde_json::Value;

use super::executors::scheduler;
use super::road::Road;
use super::sweeps::{REPEATS, ROLLOUTS, Scene, TASKS};
use crate::common::{Program, Running, SmallDisk, instant, signal, until};
use crate::reader;
use crate::s3_server::{ACCESS_KEY, BUCKET, S3Server, SECRET_KEY};

/// A cluster whose scheduler runs, the store of its runs, and the agent.
pub struct Machines {
    pub scene: Scene,
    pub store: S3Server,
    _scheduler: Running,
    address: String,
    /// Executors of one slot that a sweep is divided by, which have a call each.
    executors: usize,
}

impl Machines {
    pub fn new(scene: Scene) -> Self {
        Self::of(2, scene)
    }

    pub fn of(executors: usize, scene: Scene) -> Self {
        let (running, address) = scheduler(&scene, "0");
        Self {
            scene,
            store: S3Server::start(),
            _scheduler: running,
            address,
            executors,
        }
    }

    /// Where the scheduler listens.
    fn scheduler(&self) -> SocketAddr {
        self.address.trim_start_matches("grpc://").parse().unwrap()
    }

    /// The program on a machine that reaches the store at this address.
    fn on(&self, machine: &str, store: SocketAddr, line: &str) -> Program {
        let program = self.scene.folder.rollstream(line);
        let state = self.scene.folder.path(machine);
        program
            .env("ROLLSTREAM_STATE_DIR", state.to_str().unwrap())
            .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
            .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ENDPOINT", &format!("http://{store}"))
            .env("AWS_ALLOW_HTTP", "true")
    }

    /// An executor of one slot.
    pub fn executor(&self, name: &str) -> Program {
        self.executor_by(name, self.scheduler(), self.store.address())
    }

    /// An executor of one slot that reaches scheduler and store at these addresses.
    fn executor_by(&self, name: &str, scheduler: SocketAddr, store: SocketAddr) -> Program {
        let line =
            format!("cluster executor --scheduler grpc://{scheduler} --slots 1 --name {name}");
        self.on(name, store, &line)
    }

    /// A sweep on the executors.
    pub fn collect(&self, options: &str) -> Program {
        let line = format!(
            "collect -i tasks.jsonl --agent sim --num-repeats {REPEATS} -o s3://{BUCKET}/run --cluster {}",
            self.address
        );
        let program = self.on("driver", self.store.address(), &line);
        let (slots, calls) = (self.executors, self.executors);
        let program = program.args(&format!("--cluster-slots {slots} --concurrency {calls}"));
        program.args(&self.scene.agents.options()).args(options)
    }

    pub fn sql(&self, query: &str) -> Vec<String> {
        let line = format!("sql --format csv s3://{BUCKET}/run -c");
        let program = self.on("reader", self.store.address(), &line).arg(query);
        let ended = program.run().succeeded();
        ended.stdout.lines().skip(1).map(str::to_owned).collect()
    }

    /// A command that looks at the run from a machine that does not work on it.
    pub fn look(&self, command: &str) -> Program {
        let line = format!("{command} s3://{BUCKET}/run");
        self.on("reader", self.store.address(), &line)
    }

    /// Rollouts that the agent was asked for again.
    pub fn asked_again(&self) -> u64 {
        self.scene.agents.requests() - ROLLOUTS
    }

    /// Every rollout is in the run, and at no moment was one there twice. All that the agent was asked is on record.
    #[track_caller]
    pub fn has_every_rollout_once(&self) {
        let all = reader::all(TASKS.cast_signed(), REPEATS.cast_signed());
        assert_eq!(reader::keys(&self.store.objects(), "rollouts"), all);
        reader::was_whole_at_every_moment(&self.store.history());
        let attempts = self.sql("SELECT task_index, rollout_index, attempt FROM attempts");
        let attempts: BTreeSet<String> = attempts.into_iter().collect();
        let asked = self.scene.agents.asked("sim").into_iter();
        let asked = asked.map(|(task, rollout, attempt)| format!("{task},{rollout},{attempt}"));
        let unknown: Vec<String> = asked.filter(|key| !attempts.contains(key)).collect();
        assert_eq!(unknown, [""; 0]);
    }

    /// Kills an executor, whose machine is gone with its disk.
    pub fn lose(&self, name: &str, executor: Running) {
        executor.signal("KILL");
        executor.end();
        match std::fs::remove_dir_all(self.scene.folder.path(name)) {
            // It had begun nothing.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            removed => removed.unwrap(),
        }
    }

    /// Waits until `calls` are in flight.
    #[track_caller]
    fn until_in_flight(&self, calls: u64) {
        until("an executor is idle", || {
            self.scene.agents.counts("sim").in_flight == calls
        });
    }
}

#[test]
fn an_executor_with_a_full_disk_withdraws_and_another_goes_on() {
    let machines = Machines::new(Scene::new(SimConfig {
        body_size: 30_000,
        ..instant(["sim"])
    }));
    let Some(_disk) = SmallDisk::mount(&machines.scene.folder.path("full"), "64k") else {
        eprintln!("skipped: this process may not mount a disk");
        return;
    };
    let full = machines.executor("full").start();
    let driver = machines.collect("").start();
    let said = driver.until_it_says("executor 'full' withdraws");
    assert!(said.contains("nothing more is sent"), "{said}");
    let withdrawn = full.end().exited_with(1).stderr;
    assert!(withdrawn.contains("/full/"), "{withdrawn}");
    let _other = machines.executor("other").start();
    driver.end().succeeded();
    machines.has_every_rollout_once();
    assert_eq!(machines.scene.agents.requests(), ROLLOUTS);
}

#[test]
fn an_executor_that_does_not_see_the_output_withdraws_and_another_goes_on() {
    let machines = Machines::new(Scene::new(instant(["sim"])));
    let elsewhere = S3Server::start();
    let blind = machines
        .executor_by("blind", machines.scheduler(), elsewhere.address())
        .start();
    let driver = machines.collect("").start();
    let withdrawn = blind.end().exited_with(1).stderr;
    let place = format!("finds no run at s3://{BUCKET}/run");
    assert!(withdrawn.contains(&place), "{withdrawn}");
    assert!(elsewhere.objects().is_empty());
    let _other = machines.executor("other").start();
    driver.end().succeeded();
    machines.has_every_rollout_once();
    assert_eq!(machines.scene.agents.requests(), ROLLOUTS);
}

#[test]
fn a_slow_executor_holds_up_its_own_shards_alone() {
    let machines = Machines::new(Scene::slow());
    let [slow, _other] = ["slow", "other"].map(|name| machines.executor(name).start());
    let mut driver = machines.collect("").start();
    machines.until_in_flight(2);
    // It has a twentieth of the time.
    until("the sweep does not end", || {
        signal("STOP", slow.pid());
        std::thread::sleep(Duration::from_millis(190));
        signal("CONT", slow.pid());
        std::thread::sleep(Duration::from_millis(10));
        !driver.is_running()
    });
    let said = driver.end().succeeded().stderr;
    assert!(!said.contains("withdraws"), "{said}");
    machines.has_every_rollout_once();
    assert_eq!(machines.scene.agents.requests(), ROLLOUTS);
}

#[test]
fn an_executor_that_was_stopped_for_longer_than_its_lease_lands_nothing_late() {
    let machines = Machines::new(Scene::slow());
    let [stopped, _other] = ["stopped", "other"].map(|name| machines.executor(name).start());
    let driver = machines.collect("--lease 3s").start();
    machines.until_in_flight(2);
    signal("STOP", stopped.pid());
    // What it was asked is asked again, when the scheduler has noticed its silence and its lease is over.
    let again = || {
        let asked = machines.scene.agents.asked("sim");
        let rollouts = asked.iter().map(|(task, rollout, _)| (task, rollout));
        rollouts.collect::<BTreeSet<_>>().len() < asked.len()
    };
    until("nobody takes over", again);
    signal("CONT", stopped.pid());
    driver.end().succeeded();
    machines.has_every_rollout_once();
    let again = machines.asked_again();
    assert!((1..=30).contains(&again), "{again}");
}

#[test]
fn an_executor_that_does_not_reach_the_store_for_longer_than_its_lease_goes_on_when_it_does() {
    let machines = Machines::new(Scene::slow());
    let road = Road::to(machines.store.address());
    let cut_off = machines.executor_by("cut-off", machines.scheduler(), road.address());
    let (mut cut_off, _other) = (cut_off.start(), machines.executor("other").start());
    let driver = machines.collect("--lease 3s").start();
    machines.until_in_flight(2);
    road.close();
    until("the lease does not end", || {
        let ended = machines.look("status --json").run();
        let status: Value = serde_json::from_str(&ended.stdout).unwrap_or_default();
        let mut locks = status["locks"].as_array().into_iter().flatten();
        locks.any(|lock| lock["alive"] == false)
    });
    road.open();
    driver.end().succeeded();
    machines.has_every_rollout_once();
    // A shard at most: it knows no answer but by its own disk.
    let again = machines.asked_again();
    assert!(again <= ROLLOUTS / 4, "{again}");
    assert!(cut_off.is_running());
}

#[test]
fn an_executor_that_the_scheduler_does_not_hear_ends_its_shard_and_serves_the_next_sweep() {
    let machines = Machines::new(Scene::slow());
    let road = Road::to(machines.scheduler());
    let cut_off = machines.executor_by("cut-off", road.address(), machines.store.address());
    let (_cut_off, other) = (cut_off.start(), machines.executor("other").start());
    let driver = machines.collect("").start();
    machines.until_in_flight(2);
    road.close();
    driver.end().succeeded();
    machines.has_every_rollout_once();
    assert_eq!(machines.scene.agents.requests(), ROLLOUTS);

    other.signal("TERM");
    other.end().succeeded();
    road.open();
    machines.collect("--overwrite").run().succeeded();
    assert_eq!(machines.scene.agents.requests(), 2 * ROLLOUTS);
}

#[test]
fn what_a_killed_executor_had_not_copied_within_a_second_is_asked_again_and_nothing_else() {
    let machines = Machines::new(Scene::slow());
    let [killed, _other] = ["killed", "other"].map(|name| machines.executor(name).start());
    let driver = machines.collect("--lease 3s").start();
    machines.until_in_flight(2);
    until("nothing is copied", || {
        let objects = machines.store.objects();
        let mut names = objects.keys();
        names.any(|name| name.contains("/journal/") && name.contains(".rows"))
    });
    machines.lose("killed", killed);
    driver.end().succeeded();
    machines.has_every_rollout_once();
    // A second of calls that last a tenth of it, the call in flight, and what was under way to the store of a busy machine.
    let again = machines.asked_again();
    assert!((1..=30).contains(&again), "{again}");
}
