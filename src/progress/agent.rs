//! [`AgentProgress`]: the counts of an agent, with its [`Rewards`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::session::row;
use crate::store::RunCounts;

/// Rewards of rollouts, without those of masked ones.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rewards {
    /// How many there are.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
}

impl Rewards {
    /// Returns their mean; none if there are none.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }

    pub(super) fn add(&mut self, other: Self) {
        self.count += other.count;
        self.sum += other.sum;
    }

    fn since(self, before: Self) -> Self {
        Self {
            count: self.count.saturating_sub(before.count),
            sum: self.sum - before.sum,
        }
    }
}

/// Answers of this process that do not score: masked, flagged as failed, or to be forgotten.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Unscored {
    /// The rewards that they have all the same.
    pub rewards: Rewards,
    /// Answers that are masked.
    pub num_masked: u64,
    /// Answers that their agent asked to forget.
    pub omitted: u64,
}

impl Unscored {
    fn add_change(&mut self, before: &Self, now: &Self) {
        self.rewards.add(now.rewards.since(before.rewards));
        self.num_masked += now.num_masked.saturating_sub(before.num_masked);
        self.omitted += now.omitted.saturating_sub(before.omitted);
    }
}

row! {
    /// What earlier processes collected of a task.
    #[derive(Debug, Default, Clone, PartialEq)]
    pub struct EarlierTask {
        /// The agent that answered.
        pub agent_name: String,
        /// The task.
        pub task_index: i64,
        /// Rollouts with a reward.
        pub num_rewards: u64,
        /// The sum of their rewards.
        pub reward_sum: f64,
        /// Input tokens of its rollouts.
        pub input_tokens: u64,
        /// Output tokens of its rollouts.
        pub output_tokens: u64,
    }
}

/// A set of tasks, 64 in an entry.
#[derive(Debug, Default)]
pub(super) struct TaskSet(BTreeMap<i64, u64>);

impl TaskSet {
    /// Adds a task; returns whether it is new.
    pub(super) fn insert(&mut self, task: i64) -> bool {
        let bits = self.0.entry(task.div_euclid(64)).or_default();
        let bit = 1 << task.rem_euclid(64);
        let is_new = *bits & bit == 0;
        *bits |= bit;
        is_new
    }
}

/// Counts of one agent: `planned = done + failed + pending`.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
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
    /// Tasks that the sweep asks of the agent; 0 if not known.
    pub num_tasks: u64,
    /// Tasks of which a rollout has a reward.
    pub num_scored_tasks: u64,
    /// The rewards of the run.
    pub rewards: Rewards,
    /// Those that this process collected.
    pub rewards_now: Rewards,
    /// What it collected and does not count.
    pub unscored: Unscored,
    /// Input tokens of the rollouts of the run that are done.
    pub input_tokens: u64,
    /// Their output tokens.
    pub output_tokens: u64,
    /// The prices of a million input tokens and of a million output tokens, if known.
    pub prices: Option<[f64; 2]>,
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

    /// Takes over what this process has collected before it counted again.
    pub(super) fn take_up(&mut self, before: Self) {
        self.done_now = before.done_now;
        self.failed_now = before.failed_now;
        self.failed_attempts = before.failed_attempts;
        self.rewards_now = before.rewards_now;
        self.unscored = before.unscored;
    }

    /// Adds what another process collected between two of its reports. What is planned and what it costs is known here.
    pub fn add_change(&mut self, before: &Self, now: &Self) {
        let Self {
            planned: _,
            done,
            done_now: _,
            failed,
            failed_now: _,
            failed_attempts,
            concurrency_limit: _,
            num_tasks: _,
            num_scored_tasks,
            rewards,
            rewards_now: _,
            unscored,
            input_tokens,
            output_tokens,
            prices: _,
        } = now;
        let more = done.saturating_sub(before.done);
        self.done += more;
        self.done_now += more;
        for (class, count) in failed {
            let was = before.failed.get(class).copied().unwrap_or_default();
            let more = count.saturating_sub(was);
            *self.failed.entry(class.clone()).or_default() += more;
            self.failed_now += more;
        }
        for (class, count) in failed_attempts {
            *self.failed_attempts.entry(class.clone()).or_default() += count;
        }
        self.num_scored_tasks += num_scored_tasks.saturating_sub(before.num_scored_tasks);
        let more = rewards.since(before.rewards);
        self.rewards.add(more);
        self.rewards_now.add(more);
        self.unscored.add_change(&before.unscored, unscored);
        self.input_tokens += input_tokens.saturating_sub(before.input_tokens);
        self.output_tokens += output_tokens.saturating_sub(before.output_tokens);
    }

    /// Rollouts that have ended: also those whose answers are to be forgotten, which are pending again.
    pub(super) fn num_ended(&self) -> u64 {
        self.done + self.num_failed() + self.unscored.omitted
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

    /// Returns what the rollouts that are done cost; none if the prices are not known.
    pub fn cost(&self) -> Option<f64> {
        let [input, output] = self.prices?;
        Some((self.input_tokens as f64 * input + self.output_tokens as f64 * output) / 1e6)
    }

    /// Whether an earlier process collected a part of the rewards.
    pub fn is_resumed(&self) -> bool {
        self.rewards.count > self.rewards_now.count
    }
}
