//! What a sweep would do, what one did, and what was imported: [`SweepPlan`], [`SweepReport`] and
//! [`ImportReport`], which the pipeline makes and others show.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{FAILURE, Fatal};
use crate::expand::AgentCounts;
use crate::import::FailureCounts;
use crate::json::python_string;
use crate::measure::CompletionSummary;
use crate::progress::AgentProgress;
use crate::run::StopReason;
use crate::status::RunStatus;
use crate::store::{RunCounts, RunState};

/// What a sweep would do.
#[derive(Debug, Clone)]
pub struct SweepPlan {
    /// DataFusion's physical plan, from source to sink.
    pub physical: String,
    /// Its partitions.
    pub partitions: usize,
    /// What is asked of each agent.
    pub agents: Vec<AgentCounts>,
    /// Address of each agent.
    pub addresses: BTreeMap<String, String>,
}

impl SweepPlan {
    /// Rollouts that would be sent.
    pub fn num_pending(&self) -> u64 {
        self.agents.iter().map(AgentCounts::num_pending).sum()
    }

    /// Bytes of the requests of the whole sweep, about.
    pub fn request_bytes(&self) -> u64 {
        self.agents.iter().map(|agent| agent.request_bytes).sum()
    }
}

/// What a sweep did.
#[derive(Debug)]
pub struct SweepReport {
    /// The run, as a person names it.
    pub place: String,
    /// How it ended.
    pub state: RunState,
    /// Why it ended early, if it did.
    pub stopped_by: Option<StopReason>,
    /// Rollouts of the whole run, by what became of them.
    pub rollouts: RunCounts,
    /// The same for all agents together, with the classes of failures.
    pub total: AgentProgress,
    /// How each agent did, where not all went well.
    pub status: Option<RunStatus>,
    /// The statistics of every metric, per agent.
    pub metrics: Vec<AgentMetric>,
    /// The groups of prompts, where there are any.
    pub groups: Option<GroupReport>,
    /// Why there is nothing to be scored, where the rules ask for a score.
    pub nothing_scored: Option<NothingScored>,
    /// What was written, as a person names it.
    pub written: Vec<String>,
    /// Wall time of the calls.
    pub elapsed: Duration,
}

/// No rollout of a run gave a result, and none counts as zero.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "None of the {dispatched} dispatched rollouts produced a result {}.{} Inspect the table attempts of {place}; the run has no \
     score to report.",
    python_dict(classes),
    drained_note(*drained)
)]
pub struct NothingScored {
    /// Rollouts that were pending when the sweep began.
    pub dispatched: u64,
    /// Rollouts that failed, by NeMo Gym's class of their last failure.
    pub classes: BTreeMap<String, u64>,
    /// Those that were not sent since --dispatch-budget-s was spent.
    pub drained: u64,
    /// The run, as a person names it.
    pub place: String,
}

impl Fatal for NothingScored {
    fn exit_code(&self) -> u8 {
        FAILURE
    }
}

fn python_dict(classes: &BTreeMap<String, u64>) -> String {
    let entries = classes.iter();
    let entries = entries.map(|(class, count)| format!("{}: {count}", python_string(class)));
    format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
}

fn drained_note(drained: u64) -> String {
    match drained {
        0 => String::new(),
        _ => format!(
            " {drained} of them were never started because --dispatch-budget-s ran out; --resume sends them."
        ),
    }
}

/// What became of the groups of prompts.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub struct GroupReport {
    /// Groups that were written.
    pub committed: u64,
    /// Groups that were left out: no rollout is there, or one is missing and all are wanted, or the task is no
    /// prompt.
    pub skipped: u64,
    /// The table, as a person names it.
    pub written: String,
}

/// What an import made a run of.
#[derive(Debug)]
pub struct ImportReport {
    /// The run, as a person names it.
    pub place: String,
    /// Whether anything is left to be sent.
    pub state: RunState,
    /// Rollouts by what became of them.
    pub rollouts: RunCounts,
    /// Materialized inputs, more than are planned where several have one key.
    pub inputs: u64,
    /// Rows of the file of rollouts, more than are done where several have one key.
    pub answers: u64,
    /// Rows of the file of failures that have a key.
    pub failed_attempts: u64,
    /// The rollouts that these are of, whether they were asked for or not.
    pub failures: FailureCounts,
    /// Failures that the agent reports before a rollout has failed.
    pub max_attempts: u32,
    /// What is odd about the files.
    pub warnings: Vec<String>,
    /// What was written, as a person names it.
    pub written: Vec<String>,
}

/// What was measured.
#[derive(Debug)]
pub struct MetricsReport {
    /// How much of what was asked of each agent is there.
    pub coverage: Vec<AgentCoverage>,
    /// The statistics of every metric, per agent.
    pub metrics: Vec<AgentMetric>,
    /// What is to be known of the numbers.
    pub notes: Vec<String>,
    /// What was written, as a person names it.
    pub written: Vec<String>,
}

/// A reward profile that was written.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProfileReport {
    /// How much of what was asked for is there.
    #[serde(flatten)]
    pub completion: CompletionSummary,
    /// What was written, as a person names it.
    pub written: Vec<String>,
}

/// A row of the family `coverage`: `planned = done + failed + pending`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentCoverage {
    /// The agent.
    pub agent_name: String,
    /// Rollouts that were asked for.
    pub planned: i64,
    /// Of these, the ones that are there.
    pub done: i64,
    /// Given up.
    pub failed: i64,
    /// Pending still.
    pub pending: i64,
    /// There, and in no metric of quality.
    #[serde(default)]
    pub masked: i64,
}

impl AgentCoverage {
    /// Rollouts that were asked for and are not there.
    pub fn missing(&self) -> i64 {
        self.failed + self.pending
    }
}

/// A row of the family `agent_statistics`, with what `spread` and `pass_at_k` say of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AgentMetric {
    /// The agent.
    pub agent_name: String,
    /// The metric.
    pub metric: String,
    /// Rollouts that have it.
    pub count: u64,
    /// Mean.
    pub mean: Option<f64>,
    /// Standard error of the mean, clustered by task.
    pub stderr: Option<f64>,
    /// Standard deviation, with n - 1.
    pub std: Option<f64>,
    /// Smallest value.
    pub min: Option<f64>,
    /// Median.
    pub median: Option<f64>,
    /// Largest value.
    pub max: Option<f64>,
    /// Of a metric that is 0 or 1: pass@k and pass^k for the largest k that all tasks have rollouts for.
    pub pass_at: Option<PassAt>,
}

/// A row of the family `pass_at_k`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PassAt {
    /// Rollouts of a task that are looked at.
    pub k: i64,
    /// The chance that one of them is right.
    pub pass_at_k: f64,
    /// The chance that all are.
    pub pass_hat_k: f64,
}
