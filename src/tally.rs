//! How far a sweep is, at any moment: [`Tally`] is written by the steps and read by whoever shows
//! progress.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Float64Type, Int32Type, Int64Type};

use crate::gym::GymRules;
use crate::outcome::OK;
use crate::retry::FailureClass;
use crate::schema;
use crate::store::RunCounts;

/// Counts of a sweep under way, shared by its steps.
#[derive(Debug)]
pub struct Tally {
    started: Mutex<Instant>,
    in_flight: AtomicUsize,
    masks: AtomicBool,
    agents: Mutex<BTreeMap<String, AgentTally>>,
    notices: Mutex<VecDeque<String>>,
    shown: Mutex<ShownFailures>,
}

/// How many failures of each agent, class and status were noticed, up to the most of a kind.
#[derive(Debug, Default)]
struct ShownFailures {
    most: u64,
    by_kind: BTreeMap<(String, String, i32), u64>,
}

/// Notices that nobody took are dropped beyond so many, the oldest first.
const MOST_NOTICES: usize = 100;

/// Counts of one agent: `planned = done + failed + pending`.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct AgentTally {
    /// Rollouts that the sweep asks of it.
    pub planned: u64,
    /// Answered, and safe on disk. Those of earlier runs count.
    pub done: u64,
    /// Answered in this process.
    pub done_now: u64,
    /// Given up, by the class of the failure.
    pub failed: BTreeMap<String, u64>,
    /// Given up in this process.
    pub failed_now: u64,
    /// Attempts that failed in this process, by class; most are followed by another.
    pub failed_attempts: BTreeMap<String, u64>,
    /// Calls that may be in flight, where that adapts.
    pub concurrency_limit: Option<usize>,
    /// Rewards that were answered in this process, but for those of masked rollouts.
    pub num_rewards: u64,
    /// Their sum.
    pub reward_sum: f64,
}

impl AgentTally {
    /// What is known of an agent before a process sends anything: earlier ones left `done` rollouts
    /// answered, and `failed` given up for good.
    pub fn before(planned: u64, done: u64, failed: u64) -> Self {
        let failed = (failed > 0).then(|| ("terminal".to_owned(), failed));
        Self {
            planned,
            done,
            failed: failed.into_iter().collect(),
            ..Self::default()
        }
    }

    /// Rollouts given up.
    pub fn num_failed(&self) -> u64 {
        self.failed.values().sum()
    }

    /// Attempts that failed in this process and were not the last of their rollouts.
    pub fn num_retries(&self) -> u64 {
        let failed = self.failed_attempts.values().sum::<u64>();
        failed.saturating_sub(self.failed_now)
    }

    /// Rollouts still to come.
    pub fn pending(&self) -> u64 {
        self.planned.saturating_sub(self.done + self.num_failed())
    }

    /// The same as a run records it.
    pub fn counts(&self) -> RunCounts {
        RunCounts {
            planned: self.planned,
            done: self.done,
            failed: self.num_failed(),
            pending: self.pending(),
        }
    }

    /// Mean of the rewards so far; none before the first.
    pub fn mean_reward(&self) -> Option<f64> {
        (self.num_rewards > 0).then(|| self.reward_sum / self.num_rewards as f64)
    }
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            started: Mutex::new(Instant::now()),
            in_flight: AtomicUsize::new(0),
            masks: AtomicBool::new(false),
            agents: Mutex::default(),
            notices: Mutex::default(),
            shown: Mutex::default(),
        }
    }
}

impl Tally {
    /// The sweep begins now, with these counts.
    pub fn begin(&self, agents: impl IntoIterator<Item = (String, AgentTally)>) {
        *self.agents() = agents.into_iter().collect();
        *self.started.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// When the sweep began.
    pub fn started(&self) -> Instant {
        *self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls in flight now.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// One more call is in flight.
    pub fn dispatched(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// A call came back, or was dropped.
    pub fn returned(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// The number of calls that may be in flight to an agent has changed.
    pub fn set_concurrency_limit(&self, agent_name: &str, limit: usize) {
        if let Some(agent) = self.agents().get_mut(agent_name) {
            agent.concurrency_limit = Some(limit);
        }
    }

    /// Something that whoever watches should know.
    pub fn notice(&self, text: String) {
        let mut notices = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        if notices.len() == MOST_NOTICES {
            notices.pop_front();
        }
        notices.push_back(text);
    }

    /// The notices since this was last asked.
    pub fn take_notices(&self) -> Vec<String> {
        let mut notices = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        notices.drain(..).collect()
    }

    /// So many failures of each kind are noticed as they land.
    pub fn show_failures(&self, most: u64) {
        self.shown
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .most = most;
    }

    /// Notices the failures of a batch of outcomes that are among the first of their kind.
    fn notice_failures(&self, outcomes: &RecordBatch) {
        let text = |name| outcomes.column_by_name(name)?.as_string_view_opt();
        let number = |name| {
            outcomes
                .column_by_name(name)?
                .as_primitive_opt::<Int64Type>()
        };
        let (Some(agents), Some(classes), Some(errors)) = (
            text(schema::AGENT_NAME),
            text(schema::OUTCOME),
            text(schema::ERROR),
        ) else {
            return;
        };
        let (Some(tasks), Some(rollouts)) =
            (number(schema::TASK_INDEX), number(schema::ROLLOUT_INDEX))
        else {
            return;
        };
        let statuses = outcomes.column_by_name(schema::HTTP_STATUS);
        let statuses = statuses.and_then(|column| column.as_primitive_opt::<Int32Type>());
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let most = shown.most;
        for row in (0..outcomes.num_rows()).filter(|row| most > 0 && errors.is_valid(*row)) {
            let (agent, class) = (agents.value(row), classes.value(row));
            if class == FailureClass::Interrupted.name() {
                continue;
            }
            let status = statuses.filter(|statuses| statuses.is_valid(row));
            let status = status.map_or(0, |statuses| statuses.value(row));
            let kind = (agent.to_owned(), class.to_owned(), status);
            let count = shown.by_kind.entry(kind).or_default();
            if *count < most {
                *count += 1;
                self.notice(format!(
                    "agent '{agent}', task {}, rollout {}: {class}: {}",
                    tasks.value(row),
                    rollouts.value(row),
                    errors.value(row),
                ));
            }
        }
    }

    /// Rewards are counted by these rules.
    pub fn follow(&self, rules: &GymRules) {
        self.masks.store(rules.masks, Ordering::Relaxed);
    }

    /// Counts a batch of outcomes that is safe on disk. Attempts that another follows, and those
    /// whose rollouts are pending again, change nothing.
    pub fn landed(&self, outcomes: &RecordBatch) {
        self.notice_failures(outcomes);
        let column = |name: &str| outcomes.column_by_name(name);
        let text = |name: &str| column(name).and_then(|column| column.as_string_view_opt());
        let rewards =
            column(schema::REWARD).and_then(|column| column.as_primitive_opt::<Float64Type>());
        let terminal = column(schema::TERMINAL).and_then(|column| column.as_boolean_opt());
        let (Some(names), Some(classes), Some(terminal), Some(rewards)) = (
            text(schema::AGENT_NAME),
            text(schema::OUTCOME),
            terminal,
            rewards,
        ) else {
            return;
        };
        let masked = column(schema::MASKED).and_then(|column| column.as_boolean_opt());
        let masked = masked.filter(|_| self.masks.load(Ordering::Relaxed));
        let mut agents = self.agents();
        for row in 0..outcomes.num_rows() {
            if !agents.contains_key(names.value(row)) {
                agents.insert(names.value(row).to_owned(), AgentTally::default());
            }
            let Some(agent) = agents.get_mut(names.value(row)) else {
                continue;
            };
            match classes.value(row) {
                OK => {
                    agent.done += 1;
                    agent.done_now += 1;
                    let is_masked = masked.is_some_and(|masked| masked.value(row));
                    if rewards.is_valid(row) && !is_masked {
                        agent.num_rewards += 1;
                        agent.reward_sum += rewards.value(row);
                    }
                }
                "interrupted" => {}
                class => {
                    *agent.failed_attempts.entry(class.to_owned()).or_default() += 1;
                    if terminal.value(row) {
                        agent.failed_now += 1;
                        *agent.failed.entry(class.to_owned()).or_default() += 1;
                    }
                }
            }
        }
    }

    /// The counts of every agent now.
    pub fn by_agent(&self) -> BTreeMap<String, AgentTally> {
        self.agents().clone()
    }

    /// The counts of all agents together.
    pub fn total(&self) -> AgentTally {
        let mut total = AgentTally::default();
        for agent in self.agents().values() {
            total.planned += agent.planned;
            total.done += agent.done;
            total.done_now += agent.done_now;
            total.failed_now += agent.failed_now;
            total.num_rewards += agent.num_rewards;
            total.reward_sum += agent.reward_sum;
            for (class, count) in &agent.failed {
                *total.failed.entry(class.clone()).or_default() += count;
            }
            for (class, count) in &agent.failed_attempts {
                *total.failed_attempts.entry(class.clone()).or_default() += count;
            }
        }
        total
    }

    fn agents(&self) -> MutexGuard<'_, BTreeMap<String, AgentTally>> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
