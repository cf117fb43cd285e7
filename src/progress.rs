//! Live counts of a running sweep: the steps update [`Progress`], the progress bar and the final
//! report read it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arrow::array::{
    Array, AsArray, BooleanArray, Float64Array, Int32Array, Int64Array, RecordBatch,
    StringViewArray,
};

use crate::gym::GymRules;
use crate::outcome::OK;
use crate::retry::FailureClass;
use crate::schema;
use crate::store::RunCounts;

/// Live counts of a sweep, shared by its steps.
#[derive(Debug)]
pub struct Progress {
    in_flight: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    started: Instant,
    agents: BTreeMap<String, AgentProgress>,
    /// Rewards of masked rollouts are left out.
    masks: bool,
    /// Notices that nobody has taken yet, at most [`MAX_NOTICES`].
    notices: VecDeque<String>,
    /// How many failures of each kind become notices.
    max_failures: u64,
    /// Failures that became notices, by agent, class and HTTP status.
    noticed: BTreeMap<(String, String, i32), u64>,
}

/// Beyond this many notices the oldest ones are dropped.
const MAX_NOTICES: usize = 100;

/// Counts of one agent: `planned = done + failed + pending`.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct AgentProgress {
    /// Rollouts that the sweep asks of the agent.
    pub planned: u64,
    /// Rollouts that were answered and are safe on disk, in this process or an earlier one.
    pub done: u64,
    /// Rollouts that were answered in this process.
    pub done_now: u64,
    /// Failed rollouts, by class of the last failure.
    pub failed: BTreeMap<String, u64>,
    /// Rollouts that failed in this process.
    pub failed_now: u64,
    /// Attempts that failed in this process, by class. Most of them are retried.
    pub failed_attempts: BTreeMap<String, u64>,
    /// Current limit of calls in flight, where it adapts.
    pub concurrency_limit: Option<usize>,
    /// Number of rewards of this process, without those of masked rollouts.
    pub num_rewards: u64,
    /// Sum of these rewards.
    pub reward_sum: f64,
}

impl AgentProgress {
    /// Returns the counts at the start of a process, of which earlier ones left `done` rollouts
    /// answered and `failed` failed, by class.
    pub fn before(planned: u64, done: u64, failed: BTreeMap<String, u64>) -> Self {
        Self {
            planned,
            done,
            failed,
            ..Self::default()
        }
    }

    /// Number of failed rollouts.
    pub fn num_failed(&self) -> u64 {
        self.failed.values().sum()
    }

    /// Failed attempts of this process that were not the last of their rollouts.
    pub fn num_retries(&self) -> u64 {
        let failed = self.failed_attempts.values().sum::<u64>();
        failed.saturating_sub(self.failed_now)
    }

    /// Rollouts that are neither done nor failed.
    pub fn pending(&self) -> u64 {
        self.planned.saturating_sub(self.done + self.num_failed())
    }

    /// Returns the counts that `run.json` keeps.
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

impl Default for Progress {
    fn default() -> Self {
        Self {
            in_flight: AtomicUsize::new(0),
            state: Mutex::new(State {
                started: Instant::now(),
                agents: BTreeMap::new(),
                masks: false,
                notices: VecDeque::new(),
                max_failures: 0,
                noticed: BTreeMap::new(),
            }),
        }
    }
}

impl Progress {
    /// Starts the clock, with these counts.
    pub fn begin(&self, agents: impl IntoIterator<Item = (String, AgentProgress)>) {
        let mut state = self.state();
        state.agents = agents.into_iter().collect();
        state.started = Instant::now();
    }

    /// When the sweep began.
    pub fn started(&self) -> Instant {
        self.state().started
    }

    /// Calls in flight now.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Counts a call that was sent.
    pub fn dispatched(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a call that came back or was dropped.
    pub fn returned(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Records a new limit of calls in flight to an agent.
    pub fn set_concurrency_limit(&self, agent_name: &str, limit: usize) {
        if let Some(agent) = self.state().agents.get_mut(agent_name) {
            agent.concurrency_limit = Some(limit);
        }
    }

    /// Adds a warning for whoever watches.
    pub fn notice(&self, text: String) {
        self.state().notice(text);
    }

    /// Takes the notices since the last call.
    pub fn take_notices(&self) -> Vec<String> {
        self.state().notices.drain(..).collect()
    }

    /// Turns the first `most` failures of each agent, class and status into notices.
    pub fn show_failures(&self, most: u64) {
        self.state().max_failures = most;
    }

    /// Counts rewards by these rules.
    pub fn follow(&self, rules: &GymRules) {
        self.state().masks = rules.masks;
    }

    /// Counts a batch of outcomes that is safe on disk. Attempts that are retried leave `done` and
    /// `failed` as they are.
    pub fn landed(&self, outcomes: &RecordBatch) {
        let Some(columns) = Columns::of(outcomes) else {
            return;
        };
        let mut state = self.state();
        let masked = columns.masked.filter(|_| state.masks);
        for row in 0..outcomes.num_rows() {
            let (name, class) = (columns.agents.value(row), columns.classes.value(row));
            state.notice_failure(&columns, row);
            if !state.agents.contains_key(name) {
                let agent = (name.to_owned(), AgentProgress::default());
                state.agents.extend([agent]);
            }
            let Some(agent) = state.agents.get_mut(name) else {
                continue;
            };
            if class == OK {
                agent.done += 1;
                agent.done_now += 1;
                let is_masked = masked.is_some_and(|masked| masked.value(row));
                if columns.rewards.is_valid(row) && !is_masked {
                    agent.num_rewards += 1;
                    agent.reward_sum += columns.rewards.value(row);
                }
            } else if class != FailureClass::Interrupted.name() {
                *agent.failed_attempts.entry(class.to_owned()).or_default() += 1;
                if columns.terminal.value(row) {
                    agent.failed_now += 1;
                    *agent.failed.entry(class.to_owned()).or_default() += 1;
                }
            }
        }
    }

    /// Returns the counts of every agent.
    pub fn by_agent(&self) -> BTreeMap<String, AgentProgress> {
        self.state().agents.clone()
    }

    /// Returns the counts of all agents together.
    pub fn total(&self) -> AgentProgress {
        let mut total = AgentProgress::default();
        for agent in self.state().agents.values() {
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn notice(&mut self, text: String) {
        if self.notices.len() == MAX_NOTICES {
            self.notices.pop_front();
        }
        self.notices.push_back(text);
    }

    /// Makes a notice of a failure that is among the first of its kind.
    fn notice_failure(&mut self, columns: &Columns, row: usize) {
        let (agent, class) = (columns.agents.value(row), columns.classes.value(row));
        let is_failure = columns.errors.is_valid(row) && class != FailureClass::Interrupted.name();
        if self.max_failures == 0 || !is_failure {
            return;
        }
        let statuses = columns.statuses.filter(|statuses| statuses.is_valid(row));
        let status = statuses.map_or(0, |statuses| statuses.value(row));
        let kind = (agent.to_owned(), class.to_owned(), status);
        let count = self.noticed.entry(kind).or_default();
        if *count < self.max_failures {
            *count += 1;
            self.notice(format!(
                "agent '{agent}', task {}, rollout {}: {class}: {}",
                columns.tasks.value(row),
                columns.rollouts.value(row),
                columns.errors.value(row),
            ));
        }
    }
}

/// The columns of a batch of outcomes that are counted.
struct Columns<'a> {
    agents: &'a StringViewArray,
    classes: &'a StringViewArray,
    errors: &'a StringViewArray,
    tasks: &'a Int64Array,
    rollouts: &'a Int64Array,
    statuses: Option<&'a Int32Array>,
    terminal: &'a BooleanArray,
    rewards: &'a Float64Array,
    masked: Option<&'a BooleanArray>,
}

impl<'a> Columns<'a> {
    fn of(outcomes: &'a RecordBatch) -> Option<Self> {
        let column = |name| outcomes.column_by_name(name);
        Some(Self {
            agents: column(schema::AGENT_NAME)?.as_string_view_opt()?,
            classes: column(schema::OUTCOME)?.as_string_view_opt()?,
            errors: column(schema::ERROR)?.as_string_view_opt()?,
            tasks: column(schema::TASK_INDEX)?.as_primitive_opt()?,
            rollouts: column(schema::ROLLOUT_INDEX)?.as_primitive_opt()?,
            statuses: column(schema::HTTP_STATUS).and_then(|column| column.as_primitive_opt()),
            terminal: column(schema::TERMINAL)?.as_boolean_opt()?,
            rewards: column(schema::REWARD)?.as_primitive_opt()?,
            masked: column(schema::MASKED).and_then(|column| column.as_boolean_opt()),
        })
    }
}
