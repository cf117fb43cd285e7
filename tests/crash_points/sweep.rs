//! A small sweep that is ended at some point and resumed, and what must hold of its run then.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rollstream::sim::SimConfig;
use serde_json::Value;

use super::preload::CrashPoint;
use crate::common::{Ended, Folder, Program, Task, sums, task};
use crate::faults::agents::Agents;
use crate::faults::ledger::{Ledger, RolloutKey, batches, parts};
use crate::faults::scene::{answers_are_right, quick, requests_are_on_record};

pub const TASKS: u64 = 12;
const REPEATS: u64 = 2;

/// Several parts, and a journal of several segments.
const COLLECT: &str = "collect -i tasks.jsonl --num-repeats 2 -o run --agent sim --concurrency 4 \
    --retry-backoff 1ms --part-size 1KB --disable-aggregation";

/// Tables of which every run has parts.
const TABLES: [&str; 3] = ["rollouts", "attempts", "tasks"];

pub struct Sweep {
    pub folder: Folder,
    agents: Agents,
    config: SimConfig,
    tasks: u64,
}

impl Sweep {
    /// Of so many tasks. Two first attempts fail, and are retried.
    pub fn new(tasks: u64) -> Self {
        let config = SimConfig {
            fault_at: ["2:0:0=error_500", "5:1:0=not_json"]
                .map(|at| at.parse().unwrap())
                .into(),
            ..quick()
        };
        Self {
            folder: Folder::with_tasks(sums(tasks)),
            agents: Agents::start(config.clone()),
            config,
            tasks,
        }
    }

    /// The same place with more tasks.
    pub fn with_tasks(self, tasks: u64) -> Self {
        self.folder.tasks("tasks.jsonl", sums(tasks));
        Self { tasks, ..self }
    }

    /// The same place with other tasks, and with agents that were never asked and answer otherwise.
    pub fn replaced(self) -> Self {
        let other = |n: u64| task(&format!("How much is {n} + 1?")).answered_by(n + 1);
        let tasks: Vec<Task> = (100..100 + TASKS).map(other).collect();
        self.folder.tasks("tasks.jsonl", tasks);
        let config = SimConfig {
            seed: self.config.seed + 1,
            ..self.config
        };
        Self {
            agents: Agents::start(config.clone()),
            config,
            tasks: TASKS,
            ..self
        }
    }

    pub fn run(&self) -> PathBuf {
        self.folder.path("run")
    }

    pub fn collect(&self, options: &str) -> Program {
        let program = self.folder.rollstream(COLLECT).args(options);
        program.args(&self.agents.options())
    }

    /// Collects up to a point, if it is reached. The second is what happened, a line a change.
    pub fn collect_to(&self, point: CrashPoint, options: &str) -> (Ended, Vec<String>) {
        let log = self.folder.path("changes.log");
        fs::write(&log, "").unwrap();
        let ended = point.of(self.collect(options), &self.run(), &log).run();
        let changes = fs::read_to_string(&log).unwrap();
        (ended, changes.lines().map(str::to_owned).collect())
    }

    /// What any reader may rely on at any moment: tables hold parts and nothing else, each can be read whole, and no
    /// rollout is there twice.
    #[track_caller]
    pub fn is_readable(&self) {
        for table in TABLES {
            let names = names(&self.run().join(table));
            let strange = names.iter().find(|name| !name.ends_with(".parquet"));
            assert_eq!(strange, None, "in {table}");
            for part in parts(&self.run(), table) {
                batches(&part, &[]);
            }
        }
        Ledger::read(&self.run());
    }

    /// `status` of what a crash left adds up, and counts nothing twice.
    #[track_caller]
    pub fn status_adds_up(&self) {
        if !self.folder.has("run/run.json") {
            return;
        }
        let ended = self.folder.rollstream("status run --json").run();
        let status: Value = serde_json::from_str(&ended.succeeded().stdout).unwrap();
        let [planned, done, failed, pending] = ["planned", "done", "failed", "pending"]
            .map(|count| status["total"][count].as_u64().unwrap());
        assert_eq!(planned, done + failed + pending, "{status:#}");
    }

    /// Every rollout of these tasks is there once, with this agent's answer; every request that the agent counted has
    /// its row; and nothing is left over.
    #[track_caller]
    pub fn is_whole(&self) {
        self.is_readable();
        let ledger = Ledger::read(&self.run());
        ledger.is_consistent();
        let all = (0..self.tasks as i64).flat_map(|n| (0..REPEATS as i64).map(move |r| (n, r)));
        let done: BTreeSet<RolloutKey> = ledger.rollouts.keys().copied().collect();
        assert_eq!(done, all.collect());
        answers_are_right(&self.config, &ledger);
        requests_are_on_record(&self.agents, &ledger);
        let rollouts = self.tasks * REPEATS;
        let run = self.folder.json("run/run.json");
        assert_eq!(run["state"], "finished");
        assert_eq!(
            run["rollouts"],
            serde_json::json!({"planned": rollouts, "done": rollouts, "failed": 0, "pending": 0})
        );
        self.nothing_is_left();
    }

    #[track_caller]
    fn nothing_is_left(&self) {
        let run = self.run();
        let mut left = Vec::new();
        files(&run, &mut left);
        left.retain(|path| {
            let inside = path.strip_prefix(&run).unwrap().to_str().unwrap();
            let is_part = |table: &str| {
                let name = inside
                    .strip_prefix(table)
                    .and_then(|name| name.strip_prefix('/'));
                name.is_some_and(|name| name.ends_with(".parquet") && !name.contains('/'))
            };
            let is_epoch = inside.starts_with("writers/");
            inside != "run.json" && !is_epoch && !TABLES.into_iter().any(is_part)
        });
        assert!(left.is_empty(), "left over: {left:#?}");
    }
}

fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    entries.map(|entry| name(entry.unwrap())).collect()
}

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}
