//! A run whose files are damaged, one copy of it for each kind of damage.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use rollstream::sim::SimConfig;
use serde_json::Value;

use super::agents::Agents;
use super::files;
use super::ledger::{Ledger, RolloutKey};
use super::scene::{REPEATS, answers_are_right};
use crate::common::{Ended, Folder, Program};

/// A copy of a run, whose agents have been asked for it before.
pub struct Spoiled<'a> {
    pub folder: &'a Folder,
    agents: &'a Agents,
    config: &'a SimConfig,
    name: String,
    tasks: u64,
    /// Requests before the first of this copy.
    before: usize,
    /// Requests for the run that this is a copy of.
    requests: usize,
}

impl<'a> Spoiled<'a> {
    /// A copy of `run`, for which so many requests were made.
    pub fn new(
        folder: &'a Folder,
        agents: &'a Agents,
        config: &'a SimConfig,
        tasks: u64,
        requests: usize,
        name: &str,
    ) -> Self {
        files::copy(&folder.path("run"), &folder.path(name));
        Self {
            folder,
            agents,
            config,
            name: name.to_owned(),
            tasks,
            before: agents.requests("sim").len(),
            requests,
        }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path(&self.name)
    }

    pub fn collect(&self, options: &str) -> Program {
        let collect = format!(
            "collect -i tasks.jsonl --num-repeats {REPEATS} -o {} --retry-backoff 1ms --disable-aggregation \
             --agent sim --concurrency 8 --part-size 20KB {options}",
            self.name
        );
        let program = self.folder.rollstream(&collect);
        program.args(&self.agents.options())
    }

    /// Looks at the copy as people do: nothing panics, and what is counted is counted once.
    #[track_caller]
    pub fn looks(&self) -> Looks {
        let status = format!("status {} --json", self.name);
        let status = self.folder.rollstream(&status).run();
        did_not_panic(&status);
        let query =
            "select count(*), count(distinct task_index * 1000 + rollout_index) from rollouts";
        let program = self.folder.rollstream("sql --format csv").args(&self.name);
        let sql = program.arg("-c").arg(query).run();
        did_not_panic(&sql);
        Looks { status, sql }
    }

    /// Requests that were made since it is there.
    pub fn asked(&self) -> usize {
        self.agents.requests("sim").len() - self.before
    }

    /// Requests by rollout: those of the run that was copied, and its own.
    fn requests(&self) -> BTreeMap<RolloutKey, Vec<i64>> {
        let all = self.agents.requests("sim");
        let own = all[..self.requests].iter().chain(&all[self.before..]);
        let mut requests: BTreeMap<RolloutKey, Vec<i64>> = BTreeMap::new();
        for request in own {
            let key = (request.task_index as i64, request.rollout_index as i64);
            requests
                .entry(key)
                .or_default()
                .push(request.attempt as i64);
        }
        requests
    }

    /// Every rollout is there once, with an answer of the agent; all counts say so.
    #[track_caller]
    pub fn is_whole(&self) -> Ledger {
        let ledger = Ledger::read(&self.path());
        let all = (0..self.tasks as i64).flat_map(|n| (0..REPEATS as i64).map(move |r| (n, r)));
        let done: BTreeSet<RolloutKey> = ledger.rollouts.keys().copied().collect();
        assert_eq!(done, all.collect());
        answers_are_right(self.config, &ledger);
        let rollouts = self.tasks * REPEATS;
        let run = self.folder.json(&format!("{}/run.json", self.name));
        assert_eq!(run["state"], "finished");
        assert_eq!(
            run["rollouts"],
            serde_json::json!({"planned": rollouts, "done": rollouts, "failed": 0, "pending": 0})
        );
        let looks = self.looks();
        assert_eq!(looks.counts(), (rollouts, 0));
        assert_eq!(looks.read(), rollouts);
        ledger
    }

    /// Every request has its row, and none was sent twice under one number.
    #[track_caller]
    pub fn requests_are_on_record(&self, ledger: &Ledger) {
        let rows: BTreeSet<(i64, i64, i64)> = ledger.attempts.iter().map(|row| row.key()).collect();
        assert_eq!(rows.len(), ledger.attempts.len(), "a number was used twice");
        for ((task, rollout), attempts) in self.requests() {
            let numbers: BTreeSet<i64> = attempts.iter().copied().collect();
            assert_eq!(
                numbers.len(),
                attempts.len(),
                "{task} {rollout}: {attempts:?}"
            );
            for attempt in attempts {
                assert!(
                    rows.contains(&(task, rollout, attempt)),
                    "no row of {task} {rollout} {attempt}"
                );
            }
        }
    }
}

/// What readers said of a run.
pub struct Looks {
    pub status: Ended,
    sql: Ended,
}

impl Looks {
    /// Rollouts that are done and pending, which add up.
    #[track_caller]
    pub fn counts(&self) -> (u64, u64) {
        assert_eq!(self.status.code, Some(0), "{:#?}", self.status);
        let status: Value = serde_json::from_str(&self.status.stdout).unwrap();
        let [planned, done, failed, pending] = ["planned", "done", "failed", "pending"]
            .map(|count| status["total"][count].as_u64().unwrap());
        assert_eq!(planned, done + failed + pending, "{status:#}");
        (done, pending)
    }

    /// Rollouts that `sql` reads, none of them twice.
    #[track_caller]
    pub fn read(&self) -> u64 {
        assert_eq!(self.sql.code, Some(0), "{:#?}", self.sql);
        let row = self.sql.stdout.lines().nth(1).unwrap();
        let (rows, rollouts) = row.split_once(',').unwrap();
        assert_eq!(rows, rollouts, "{:#?}", self.sql);
        rows.parse().unwrap()
    }
}

#[track_caller]
pub fn did_not_panic(ended: &Ended) {
    let is_well = matches!(ended.code, Some(code) if code != 101);
    assert!(is_well && !ended.stderr.contains("panicked"), "{ended:#?}");
}

/// The program said this, whether as a warning or as an error.
#[track_caller]
pub fn said(ended: &Ended, parts: &[&str]) {
    let text = format!("{}{}", ended.stdout, ended.stderr);
    let missing: Vec<&&str> = parts.iter().filter(|part| !text.contains(**part)).collect();
    assert!(missing.is_empty(), "{missing:?} is missing: {ended:#?}");
}
