//! What a sweep would do, what it did, and what was imported: [`SweepPlan`], [`SweepReport`] and
//! [`ImportReport`]. The sweep makes them, `show` and the command line print them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::error::{FAILURE, Fatal};
use crate::expand::AgentCounts;
use crate::import::FailureCounts;
use crate::progress::AgentProgress;
use crate::python::repr_dict;
use crate::status::RunStatus;
use crate::store::{RunCounts, RunState};

pub use crate::measure::compare::{ComparedRun, ComparisonReport, MetricComparison, Overlap};
pub use crate::measure::{AgentCoverage, AgentMetric, MetricsReport, PassAt, ProfileReport};
pub use crate::run::StopReason;

/// What a sweep would do.
#[derive(Debug, Clone)]
pub struct SweepPlan {
    /// DataFusion's physical plan, from source to sink.
    pub physical: String,
    /// Its partitions.
    pub partitions: usize,
    /// What is asked of each agent.
    pub agents: Vec<AgentCounts>,
    /// Bytes of the requests of each agent's rollouts, done or not, about.
    pub request_bytes: BTreeMap<String, u64>,
    /// Address of each agent.
    pub addresses: BTreeMap<String, String>,
    /// What the pending rollouts will take.
    pub estimate: Estimate,
}

/// What the pending rollouts will take if they are as those that are done.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Estimate {
    /// Rollouts that are done and that the estimate is made from.
    pub num_done: u64,
    /// Seconds that the sweep will take; none if some agent has no rollout that is done.
    pub seconds: Option<f64>,
    /// Seconds that it will take at least, because of the limits of requests per second.
    pub least_seconds: f64,
    /// The price of their tokens; none unless the prices and the tokens of all agents are known.
    pub cost: Option<f64>,
}

impl SweepPlan {
    /// Rollouts that would be sent.
    pub fn num_pending(&self) -> u64 {
        self.agents.iter().map(AgentCounts::num_pending).sum()
    }
}

/// What a sweep did.
#[derive(Debug)]
pub struct SweepReport {
    /// Path or address of the run.
    pub place: String,
    /// How it ended.
    pub state: RunState,
    /// Why it ended early, if it did.
    pub stopped_by: Option<StopReason>,
    /// Rollouts of the whole run: planned, done, failed and pending.
    pub rollouts: RunCounts,
    /// The same for all agents together, with the classes of failures.
    pub total: AgentProgress,
    /// How each agent did, where not all went well.
    pub status: Option<RunStatus>,
    /// The statistics of every metric, per agent.
    pub metrics: Vec<AgentMetric>,
    /// The groups of prompts, if there are any.
    pub groups: Option<GroupReport>,
    /// Why there is nothing to be scored, where the rules ask for a score.
    pub nothing_scored: Option<NothingScored>,
    /// Paths of what was written.
    pub written: Vec<String>,
    /// Time from the first call of this process to the last that landed; zero if none was sent.
    pub elapsed: Duration,
    /// Rollouts that this process finished per second, in the last minute of this time.
    pub rollouts_per_second: f64,
}

/// No rollout of a run gave a result, and none counts as zero.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "None of the {dispatched} dispatched rollouts produced a result {}.{} Inspect the table attempts of {place}; the run has no \
     score to report.",
    repr_dict(classes),
    drained_note(*drained, place)
)]
pub struct NothingScored {
    /// Rollouts that were pending when the sweep began.
    pub dispatched: u64,
    /// Rollouts that failed, by NeMo Gym's class of their last failure.
    pub classes: BTreeMap<String, u64>,
    /// Those that were not sent since --dispatch-budget-s was spent.
    pub drained: u64,
    /// Path or address of the run.
    pub place: String,
}

impl Fatal for NothingScored {
    fn exit_code(&self) -> u8 {
        FAILURE
    }
}

fn drained_note(drained: u64, place: &str) -> String {
    match drained {
        0 => String::new(),
        _ => format!(
            " {drained} of them were never started because --dispatch-budget-s ran out; `rollstream resume {place}` sends \
             them."
        ),
    }
}

/// The groups of prompts that were written.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub struct GroupReport {
    /// Groups that were written.
    pub committed: u64,
    /// Groups that were left out: no rollout is there, or one is missing and all are wanted, or the task is no
    /// prompt.
    pub skipped: u64,
    /// Path of the table.
    pub written: String,
}

/// What an import made a run of.
#[derive(Debug, Serialize)]
pub struct ImportReport {
    /// Path or address of the run.
    pub place: String,
    /// Whether anything is left to be sent.
    pub state: RunState,
    /// Rollouts: planned, done, failed and pending.
    pub rollouts: RunCounts,
    /// Materialized inputs, more than are planned where several have one key.
    pub inputs: u64,
    /// Rows of the file of rollouts, more than are done where several have one key.
    pub answers: u64,
    /// Rows of the file of failures that have a key.
    pub failed_attempts: u64,
    /// The rollouts that these are of, whether they were asked for or not.
    #[serde(flatten)]
    pub failures: FailureCounts,
    /// Failures that the agent reports before a rollout has failed.
    pub max_attempts: u32,
    /// Warnings on the files.
    pub warnings: Vec<String>,
    /// Paths of what was written.
    pub written: Vec<String>,
}
