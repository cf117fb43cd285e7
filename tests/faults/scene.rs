//! A sweep of 50 tasks with 4 rollouts each, or of more [under load](super::load), against agents that fail as they are
//! told.

use std::collections::BTreeSet;

use rollstream::sim::{
    AgentChange, FaultKind, FaultRates, Latency, RequestEnd, RequestRecord, SimConfig, oracle,
};
use serde_json::Value;

use super::agents::Agents;
use super::ledger::{Ledger, RolloutKey};
use super::load;
use crate::common::{Ended, Folder, Program, instant, sums};

pub const REPEATS: u64 = 4;

const TASKS: u64 = 50;

/// Tasks of a sweep.
pub fn tasks() -> u64 {
    load::tasks(TASKS, REPEATS)
}

/// Rollouts of a sweep.
pub fn rollouts() -> u64 {
    tasks() * REPEATS
}

/// Rollouts of a sweep but for so many.
pub fn all_but(others: usize) -> usize {
    rollouts() as usize - others
}

/// The task that a single fault happens to.
pub const FAULTY: i64 = 7;

/// Pauses are short, and nothing is measured: that is not what is tested here.
pub const COLLECT: &str =
    "collect -i tasks.jsonl --num-repeats 4 -o run --retry-backoff 1ms --disable-aggregation";

/// A sweep of the tasks in a folder, in as many partitions as the environment asks for.
pub fn collecting(folder: &Folder) -> Program {
    folder.rollstream(COLLECT).args(&load::partitions())
}

/// A sweep and its agents.
pub struct Scene {
    pub folder: Folder,
    pub agents: Agents,
    pub config: SimConfig,
    tasks: u64,
    /// It has as many calls in flight as the environment asks for.
    is_raised: bool,
}

/// One agent that answers at once.
pub fn quick() -> SimConfig {
    instant(["sim"])
}

impl Scene {
    pub fn new(config: SimConfig) -> Self {
        Self {
            folder: Folder::with_tasks(sums(tasks())),
            agents: Agents::start(config.clone()),
            config,
            tasks: tasks(),
            is_raised: true,
        }
    }

    /// With its own number of tasks and of calls in flight, whatever the environment asks for.
    pub fn with_its_own_load(self) -> Self {
        Self {
            folder: Folder::with_tasks(sums(TASKS)),
            tasks: TASKS,
            is_raised: false,
            ..self
        }
    }

    /// What goes wrong, as `7=reset` or `7:0:1=reset`.
    pub fn with_faults_at(places: &[&str]) -> Self {
        Self::new(SimConfig {
            fault_at: places.iter().map(|at| at.parse().unwrap()).collect(),
            ..quick()
        })
    }

    /// The first attempt at every rollout meets with a fault.
    pub fn with_first_attempts(fault: &str) -> Self {
        Self::new(SimConfig {
            faults: rates(&[(fault, 1.0)]),
            fault_attempts: Some(1),
            ..quick()
        })
    }

    /// An agent that takes a while, so that things can happen to a sweep.
    pub fn slow(milliseconds: u64) -> Self {
        Self::new(SimConfig {
            latency: Latency::Fixed(std::time::Duration::from_millis(milliseconds)),
            ..quick()
        })
    }

    pub fn collect(&self, options: &str) -> Program {
        let program = collecting(&self.folder).args("--agent sim");
        let program = program.args(&self.agents.options());
        if self.is_raised {
            program.args(&load::raised(options))
        } else {
            program.args(options)
        }
    }

    pub fn ledger(&self) -> Ledger {
        let ledger = Ledger::read(&self.folder.path("run"));
        ledger.is_consistent();
        ledger
    }

    /// Faults that were set by rate end.
    pub fn heal(&self) {
        let change = AgentChange {
            faults: Some(FaultRates::default()),
            latency: Some(quick().latency),
            ..AgentChange::default()
        };
        self.agents.change("sim", change);
    }

    /// Every rollout but those of `failed` is done, with the answer that the agent gave to that attempt; every request
    /// that the agent counted is on record; and `run.json` has counted the same.
    #[track_caller]
    pub fn is_done_but_for(&self, failed: &[i64]) -> Ledger {
        let ledger = self.ledger();
        let all = (0..self.tasks as i64).filter(|task| !failed.contains(task));
        let all = all.flat_map(|task| (0..REPEATS as i64).map(move |rollout| (task, rollout)));
        let done: BTreeSet<RolloutKey> = ledger.rollouts.keys().copied().collect();
        assert_eq!(done, all.collect());
        self.answers_are_right(&ledger);
        self.requests_are_on_record(&ledger);
        let run = self.folder.json("run/run.json");
        assert_eq!(run["rollouts"]["planned"], self.tasks * REPEATS);
        assert_eq!(run["rollouts"]["done"], done.len());
        ledger
    }

    #[track_caller]
    pub fn answers_are_right(&self, ledger: &Ledger) {
        answers_are_right(&self.config, ledger);
    }

    #[track_caller]
    pub fn requests_are_on_record(&self, ledger: &Ledger) {
        requests_are_on_record(&self.agents, ledger);
    }

    /// `run.json` says so.
    #[track_caller]
    pub fn has_state(&self, state: &str) {
        assert_eq!(self.folder.json("run/run.json")["state"], state);
    }

    /// What `rollstream status` says.
    pub fn status(&self) -> Value {
        let ended = self.folder.rollstream("status run --json").run();
        serde_json::from_str(&ended.succeeded().stdout).unwrap()
    }
}

pub fn rates(rates: &[(&str, f64)]) -> FaultRates {
    let rates = rates.iter();
    FaultRates(
        rates
            .map(|(kind, rate)| (kind.parse().unwrap(), *rate))
            .collect(),
    )
}

/// Each rollout is what the agent answers to its attempt.
#[track_caller]
pub fn answers_are_right(config: &SimConfig, ledger: &Ledger) {
    for ((task, rollout), row) in &ledger.rollouts {
        let planned = oracle(config, *task as u64, *rollout as u64, row.attempt as u64);
        assert!(planned.gives_rollout(), "{task} {rollout} {row:?}");
        let answer: Value = serde_json::from_str(&row.result).unwrap();
        let id = format!("resp_{:016x}", planned.answer_id);
        assert_eq!(answer["response"]["id"], id, "{task} {rollout}");
        assert_eq!(answer["_ng_task_index"], *task);
        assert_eq!(answer["_ng_rollout_index"], *rollout);
        assert_eq!(row.reward, Some(planned.reward), "{task} {rollout}");
    }
}

/// A request over a connection that had been idle, and that breaks without a byte of an answer, looks like one that the
/// server never read. So it is sent again at once, under the same number.
pub fn may_come_again(request: &RequestRecord) -> bool {
    matches!(request.fault, Some(FaultKind::Reset | FaultKind::Fin))
        || request.end == RequestEnd::Abandoned
}

/// Every request that the agents counted has a row, and none that had an answer was sent twice under one number.
#[track_caller]
pub fn requests_are_on_record(agents: &Agents, ledger: &Ledger) {
    let rows: BTreeSet<(i64, i64, i64)> = ledger.attempts.iter().map(|row| row.key()).collect();
    let mut seen = BTreeSet::new();
    for request in agents.requests("sim") {
        let key =
            [request.task_index, request.rollout_index, request.attempt].map(|index| index as i64);
        let key = (key[0], key[1], key[2]);
        assert!(rows.contains(&key), "no row of {request:?}");
        let is_first = may_come_again(&request) || seen.insert(key);
        assert!(is_first, "sent twice: {request:?}");
    }
}

/// A count as people read it: `4,096`.
pub fn shown(count: u64) -> String {
    match count / 1000 {
        0 => count.to_string(),
        thousands => format!("{},{:03}", shown(thousands), count % 1000),
    }
}

/// The last line says how the counts ended: `failed`, `pending`, and all others are done.
#[track_caller]
pub fn counted(ended: &Ended, failed: u64, pending: u64) {
    let stdout = &ended.stdout;
    let planned = rollouts();
    let done = planned - failed - pending;
    let [done, failed] = [done, failed].map(shown);
    let said = format!(
        "{done} of {} rollouts done, {failed} failed",
        shown(planned)
    );
    assert!(stdout.contains(&said), "{said}: {ended:#?}");
    let pending_said = format!("{} pending", shown(pending));
    assert!(
        pending == 0 || stdout.contains(&pending_said),
        "{pending_said}: {ended:#?}"
    );
}
