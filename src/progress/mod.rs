//! Live counts of a running sweep: the steps update [`Progress`], the progress bar and the final
//! report read it.

mod agent;
mod columns;
mod executor;
mod recent;
mod series;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arrow::array::{Array, Int64Array, RecordBatch};

use self::agent::TaskSet;
pub use self::agent::{AgentProgress, EarlierTask, Rewards, Unscored};
use self::columns::{Columns, valid};
pub use self::executor::ExecutorProgress;
use self::recent::{Landed, Recent};
pub use self::recent::{Rates, SPAN};
pub use self::series::Point;
use self::series::Series;
use crate::gym::GymRules;
use crate::outcome::OK;
use crate::retry::FailureClass;

/// Live counts of a sweep, shared by its steps.
#[derive(Debug, Default)]
pub struct Progress {
    in_flight: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    recent: Recent,
    /// Tasks of which a rollout has a reward, by agent.
    scored: BTreeMap<String, TaskSet>,
    agents: BTreeMap<String, AgentProgress>,
    /// The executors that send the rollouts, if this process does not.
    executors: Vec<ExecutorProgress>,
    /// When they were last looked at.
    followed: Option<Instant>,
    /// Rewards of masked rollouts are left out.
    masks: bool,
    /// Notices that nobody has taken yet, at most [`MAX_NOTICES`].
    notices: VecDeque<String>,
    /// How many failures of each kind become notices.
    max_failures: u64,
    /// Failures that became notices, by agent, class and HTTP status.
    noticed: BTreeMap<(String, String, i32), u64>,
    /// Whether the series is kept, and what there is of it.
    keeps_series: bool,
    series: Option<Series>,
}

/// Beyond this many notices the oldest ones are dropped.
const MAX_NOTICES: usize = 100;

/// What a sweep is doing.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It sends what is pending.
    #[default]
    Sending,
    /// It sends nothing more, and waits for the calls in flight, until then if there is a limit.
    Stopping(Option<Instant>),
    /// It drops the calls in flight.
    Dropping,
    /// All answers are there. It writes them as Parquet, and measures.
    Finishing,
}

impl Progress {
    /// Begins with these counts, or begins again: what this process has collected until then stays known.
    pub fn begin(&self, agents: impl IntoIterator<Item = (String, AgentProgress)>) {
        let mut state = self.state();
        let before = std::mem::take(&mut state.agents);
        state.scored.clear();
        state.agents = agents.into_iter().collect();
        for (name, was) in before {
            if let Some(agent) = state.agents.get_mut(&name) {
                agent.take_up(was);
            }
        }
        // The series of a sweep that others send is at its end when the rollouts are counted again.
        if state.keeps_series && state.series.is_none() {
            state.series = Some(Series::new(state.agents.values()));
        }
    }

    /// Keeps a [`Point`] for each percent of the rollouts, from [`Self::begin`] on.
    pub fn keep_series(&self) {
        self.state().keeps_series = true;
    }

    /// Whether [`Self::begin`] was called, if the series is kept: from then on, the run exists.
    pub fn has_begun(&self) -> bool {
        self.state().series.is_some()
    }

    /// Returns the points of the series from this number on.
    pub fn points(&self, from: usize) -> Vec<Point> {
        let state = self.state();
        let points = state
            .series
            .as_ref()
            .map(|series| series.points.get(from..));
        points.flatten().unwrap_or_default().to_vec()
    }

    /// Adds what earlier processes collected of a task. Their rollouts are counted as done already.
    pub fn found(&self, earlier: &EarlierTask) {
        let mut state = self.state();
        let is_new = earlier.num_rewards > 0
            && state.is_newly_scored(&earlier.agent_name, earlier.task_index);
        if let Some(agent) = state.agents.get_mut(&earlier.agent_name) {
            agent.num_scored_tasks += u64::from(is_new);
            agent.rewards.add(Rewards {
                count: earlier.num_rewards,
                sum: earlier.reward_sum,
            });
            agent.input_tokens += earlier.input_tokens;
            agent.output_tokens += earlier.output_tokens;
        }
    }

    /// Takes the counts of other processes, which send the rollouts of this sweep, and what each of them does.
    pub fn follow_others(
        &self,
        agents: BTreeMap<String, AgentProgress>,
        executors: Vec<ExecutorProgress>,
    ) {
        let in_flight = executors.iter().map(|executor| executor.in_flight).sum();
        let sum = |agents: &BTreeMap<String, AgentProgress>,
                   of: fn(&AgentProgress) -> u64|
         -> u64 { agents.values().map(of).sum() };
        let finished = |agent: &AgentProgress| agent.done + agent.num_failed();
        let mut state = self.state();
        let (was, now) = (sum(&state.agents, finished), sum(&agents, finished));
        let had_ended = sum(&state.agents, AgentProgress::num_ended);
        let have_ended = sum(&agents, AgentProgress::num_ended);
        let at = Instant::now();
        // What has happened since the last look began after it.
        let last = state.followed.replace(at).unwrap_or(at);
        if in_flight > 0 || now > was {
            state.recent.begin(last);
        }
        if now > was {
            state.recent.add(Landed {
                at,
                finished: now - was,
                output_tokens: None,
                latencies: Vec::new(),
            });
        }
        state.agents = agents;
        state.executors = executors;
        let State { series, agents, .. } = &mut *state;
        if let Some(series) = series {
            series.count(have_ended.saturating_sub(had_ended), agents);
        }
        self.in_flight.store(in_flight, Ordering::Relaxed);
    }

    /// Notes what the sweep is doing now. A sweep that finishes its work does not stop any more.
    pub fn enter(&self, phase: Phase) {
        let mut state = self.state();
        if state.phase != Phase::Finishing {
            state.phase = phase;
        }
    }

    /// What the sweep is doing.
    pub fn phase(&self) -> Phase {
        self.state().phase
    }

    /// The rates of the last minute: until now while calls are made, else until the last of them landed.
    pub fn rates(&self) -> Rates {
        let state = self.state();
        let now = (state.phase != Phase::Finishing).then(Instant::now);
        state.recent.rates(now)
    }

    /// Time from the first call of this process to the last that landed.
    pub fn worked(&self) -> Duration {
        self.state().recent.worked()
    }

    /// Calls in flight now.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Counts a call that was sent.
    pub fn dispatched(&self) {
        if self.in_flight.fetch_add(1, Ordering::Relaxed) == 0 {
            self.state().recent.begin(Instant::now());
        }
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
        let mut landed = Landed {
            at: Instant::now(),
            finished: 0,
            output_tokens: None,
            latencies: Vec::new(),
        };
        for row in 0..outcomes.num_rows() {
            let (name, class) = (columns.agents.value(row), columns.classes.value(row));
            state.notice_failure(&columns, row);
            let is_masked = masked.is_some_and(|masked| masked.value(row));
            let reward = valid(columns.rewards, row).filter(|_| class == OK && !is_masked);
            let is_new = reward.is_some() && state.is_newly_scored(name, columns.tasks.value(row));
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
                agent.num_scored_tasks += u64::from(is_new);
                if let Some(sum) = reward {
                    agent.rewards.add(Rewards { count: 1, sum });
                    agent.rewards_now.add(Rewards { count: 1, sum });
                }
                let tokens = |column: Option<&Int64Array>| {
                    column.and_then(|column| valid(column, row)?.try_into().ok())
                };
                agent.input_tokens += tokens(columns.input_tokens).unwrap_or(0);
                if let Some(tokens) = tokens(columns.output_tokens) {
                    agent.output_tokens += tokens;
                    landed.output_tokens = Some(landed.output_tokens.unwrap_or(0) + tokens);
                }
                let server = columns.server_ms.and_then(|column| valid(column, row));
                landed.latencies.extend(server.map(|ms| ms / 1000.0));
                landed.finished += 1;
            } else if class != FailureClass::Interrupted.name() {
                *agent.failed_attempts.entry(class.to_owned()).or_default() += 1;
                if columns.terminal.value(row) {
                    agent.failed_now += 1;
                    *agent.failed.entry(class.to_owned()).or_default() += 1;
                    landed.finished += 1;
                }
            }
            let is_omitted = class == FailureClass::NotPersisted.name();
            let is_scored = class == OK && !is_masked;
            let has_ended = class == OK || is_omitted || columns.terminal.value(row);
            if has_ended && !is_scored {
                agent.unscored.omitted += u64::from(is_omitted);
                agent.unscored.num_masked += u64::from(is_masked && class == OK);
                if let Some(sum) = columns.any_reward(row) {
                    agent.unscored.rewards.add(Rewards { count: 1, sum });
                }
            }
            let State { series, agents, .. } = &mut *state;
            if let (Some(series), true) = (series, has_ended) {
                series.count(1, agents);
            }
        }
        state.recent.add(landed);
    }

    /// Returns the counts of every agent.
    pub fn by_agent(&self) -> BTreeMap<String, AgentProgress> {
        self.state().agents.clone()
    }

    /// Returns what the executors do that send the rollouts; none if this process sends them.
    pub fn executors(&self) -> Vec<ExecutorProgress> {
        self.state().executors.clone()
    }

    /// Returns the counts of all agents together.
    pub fn total(&self) -> AgentProgress {
        let mut total = AgentProgress::default();
        for agent in self.state().agents.values() {
            total.planned += agent.planned;
            total.done += agent.done;
            total.done_now += agent.done_now;
            total.failed_now += agent.failed_now;
            total.num_tasks += agent.num_tasks;
            total.num_scored_tasks += agent.num_scored_tasks;
            total.rewards.add(agent.rewards);
            total.rewards_now.add(agent.rewards_now);
            total.input_tokens += agent.input_tokens;
            total.output_tokens += agent.output_tokens;
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

    /// Whether this is the first reward of a task. Notes that it has one.
    fn is_newly_scored(&mut self, agent_name: &str, task: i64) -> bool {
        if let Some(scored) = self.scored.get_mut(agent_name) {
            return scored.insert(task);
        }
        self.scored
            .entry(agent_name.to_owned())
            .or_default()
            .insert(task)
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
