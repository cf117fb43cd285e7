//! What measuring reports: [`MetricsReport`] and [`ProfileReport`], and [`Measured`], which is filled from the rows of the
//! metric tables.

use arrow::record_batch::RecordBatch;

use serde::{Deserialize, Serialize};

use super::completion::CompletionSummary;
use super::error::MeasureError;
use super::families::AGENT_STATISTICS;
use super::rows::{counts, floats, texts};
use super::views::COVERAGE;

const SPREAD: &str = "spread";
const PASS_AT_K: &str = "pass_at_k";

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

/// What was measured, and where it stands.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    pub(crate) coverage: Vec<AgentCoverage>,
    pub(crate) metrics: Vec<AgentMetric>,
    pub(crate) written: Vec<String>,
    /// What is to be known of the numbers.
    pub(crate) notes: Vec<String>,
    /// Tasks of several runs had to be numbered anew.
    pub(crate) is_renumbered: bool,
    stderrs: Vec<(String, String, Option<f64>)>,
    passes: Vec<Pass>,
}

/// A row of `pass_at_k`.
#[derive(Debug)]
struct Pass {
    agent_name: String,
    metric: String,
    num_tasks: i64,
    pass_at: PassAt,
}

impl Measured {
    /// The families that are shown.
    pub(crate) const FAMILIES: [&str; 4] = [AGENT_STATISTICS, COVERAGE, SPREAD, PASS_AT_K];

    /// Takes what is shown from the rows of a family. Of a family that a user has replaced by one of
    /// other columns nothing is shown, but for the statistics.
    pub(super) fn look(&mut self, family: &str, batch: &RecordBatch) -> Result<(), MeasureError> {
        match family {
            AGENT_STATISTICS => self.metrics.extend(agent_metrics(batch)?),
            COVERAGE => self.coverage.extend(coverage(batch).unwrap_or_default()),
            SPREAD => self.stderrs.extend(stderrs(batch).unwrap_or_default()),
            PASS_AT_K => self.passes.extend(passes(batch).unwrap_or_default()),
            _ => {}
        }
        Ok(())
    }

    /// Puts what several families say of a metric together.
    pub(super) fn join(&mut self) {
        for metric in &mut self.metrics {
            let is_it =
                |agent: &str, name: &str| agent == metric.agent_name && name == metric.metric;
            let stderr = self
                .stderrs
                .iter()
                .find(|(agent, name, _)| is_it(agent, name));
            metric.stderr = stderr.and_then(|(_, _, stderr)| *stderr);
            // Of k that only some tasks have rollouts for, nothing is said: these are easier ones, or faster.
            let passes = self.passes.iter();
            let passes = passes.filter(|pass| is_it(&pass.agent_name, &pass.metric));
            let most = passes.clone().map(|pass| pass.num_tasks).max();
            let of_all = passes.filter(|pass| Some(pass.num_tasks) == most);
            let largest = of_all.max_by_key(|pass| pass.pass_at.k);
            metric.pass_at = largest.map(|pass| pass.pass_at);
        }
    }
}

fn agent_metrics(batch: &RecordBatch) -> Result<Vec<AgentMetric>, MeasureError> {
    let mut names = texts(batch, "metric")?.into_iter();
    let mut counts = counts(batch, "count")?.into_iter();
    let mut means = floats(batch, "mean")?.into_iter();
    let mut stds = floats(batch, "std")?.into_iter();
    let mut mins = floats(batch, "min")?.into_iter();
    let mut medians = floats(batch, "median")?.into_iter();
    let mut maxs = floats(batch, "max")?.into_iter();
    let agents = texts(batch, "agent_name")?.into_iter();
    let metrics = agents.map(|agent_name| AgentMetric {
        agent_name,
        metric: names.next().unwrap_or_default(),
        count: counts.next().unwrap_or_default().unsigned_abs(),
        mean: means.next().flatten(),
        stderr: None,
        std: stds.next().flatten(),
        min: mins.next().flatten(),
        median: medians.next().flatten(),
        max: maxs.next().flatten(),
        pass_at: None,
    });
    Ok(metrics.collect())
}

fn coverage(batch: &RecordBatch) -> Result<Vec<AgentCoverage>, MeasureError> {
    let mut planned = counts(batch, "planned")?.into_iter();
    let mut done = counts(batch, "done")?.into_iter();
    let mut failed = counts(batch, "failed")?.into_iter();
    let mut pending = counts(batch, "pending")?.into_iter();
    // Metrics of earlier versions have no such column.
    let mut masked = counts(batch, "masked").unwrap_or_default().into_iter();
    let agents = texts(batch, "agent_name")?.into_iter();
    let coverage = agents.map(|agent_name| AgentCoverage {
        agent_name,
        planned: planned.next().unwrap_or_default(),
        done: done.next().unwrap_or_default(),
        failed: failed.next().unwrap_or_default(),
        pending: pending.next().unwrap_or_default(),
        masked: masked.next().unwrap_or_default(),
    });
    Ok(coverage.collect())
}

fn stderrs(batch: &RecordBatch) -> Result<Vec<(String, String, Option<f64>)>, MeasureError> {
    let agents = texts(batch, "agent_name")?.into_iter();
    let rows = agents
        .zip(texts(batch, "metric")?)
        .zip(floats(batch, "stderr")?);
    Ok(rows
        .map(|((agent, metric), stderr)| (agent, metric, stderr))
        .collect())
}

fn passes(batch: &RecordBatch) -> Result<Vec<Pass>, MeasureError> {
    let mut ks = counts(batch, "k")?.into_iter();
    let mut num_tasks = counts(batch, "num_tasks")?.into_iter();
    let mut pass_at = floats(batch, "pass_at_k")?.into_iter();
    let mut pass_hat = floats(batch, "pass_hat_k")?.into_iter();
    let agents = texts(batch, "agent_name")?.into_iter();
    let rows = agents
        .zip(texts(batch, "metric")?)
        .filter_map(|(agent_name, metric)| {
            let (k, num_tasks) = (ks.next()?, num_tasks.next()?);
            let (pass_at_k, pass_hat_k) = (pass_at.next()?, pass_hat.next()?);
            Some(Pass {
                agent_name,
                metric,
                num_tasks,
                pass_at: PassAt {
                    k,
                    pass_at_k: pass_at_k?,
                    pass_hat_k: pass_hat_k?,
                },
            })
        });
    Ok(rows.collect())
}
