//! The results of measuring: [`MetricsReport`], which [`Shown`] builds from the rows of the metric tables, and
//! [`ProfileReport`].

use arrow::record_batch::RecordBatch;
use serde::Serialize;

use super::error::MeasureError;
use super::families::{AGENT_STATISTICS, COVERAGE};
use super::nemo_gym::CompletionSummary;
use super::rows::row;

const SPREAD: &str = "spread";
const PASS_AT_K: &str = "pass_at_k";

/// The result of measuring.
#[derive(Debug, Default, Serialize)]
pub struct MetricsReport {
    /// The coverage of each agent.
    pub coverage: Vec<AgentCoverage>,
    /// The statistics of every metric, per agent.
    pub metrics: Vec<AgentMetric>,
    /// Warnings about the numbers.
    pub notes: Vec<String>,
    /// Paths of what was written.
    pub written: Vec<String>,
}

/// A reward profile that was written.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProfileReport {
    /// How many of the rollouts are done.
    #[serde(flatten)]
    pub completion: CompletionSummary,
    /// Paths of what was written.
    pub written: Vec<String>,
}

row! {
    /// A row of the family `coverage`: `planned = done + failed + pending`.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize)]
    pub struct AgentCoverage {
        /// The agent.
        pub agent_name: String,
        /// Planned rollouts.
        pub planned: i64,
        /// Planned rollouts that are done.
        pub done: i64,
        /// Planned rollouts that have failed.
        pub failed: i64,
        /// Planned rollouts that are neither done nor failed.
        pub pending: i64,
        /// Masked rollouts: done, but left out of quality metrics.
        pub masked: i64,
    }
}

impl AgentCoverage {
    /// Returns the number of planned rollouts that are not done.
    pub fn missing(&self) -> i64 {
        self.failed + self.pending
    }
}

/// A row of the family `agent_statistics`, with values of `spread` and `pass_at_k`.
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
    /// For a metric that is 0 or 1: pass@k and pass^k for the largest k that all tasks have rollouts for.
    pub pass_at: Option<PassAt>,
}

/// A row of the family `pass_at_k`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PassAt {
    /// The number of rollouts drawn from a task.
    pub k: i64,
    /// The probability that at least one of them is right.
    pub pass_at_k: f64,
    /// The probability that all of them are right.
    pub pass_hat_k: f64,
}

/// The rows of the families that are shown.
#[derive(Debug, Default)]
pub(super) struct Shown {
    coverage: Vec<AgentCoverage>,
    statistics: Vec<Statistics>,
    spreads: Vec<Spread>,
    passes: Vec<Pass>,
}

row! {
    /// A row of `spread`.
    #[derive(Debug)]
    struct Spread {
        agent_name: String,
        metric: String,
        stderr: Option<f64>,
    }
}

row! {
    /// A row of `pass_at_k`.
    #[derive(Debug)]
    struct Pass {
        agent_name: String,
        metric: String,
        k: i64,
        num_tasks: i64,
        pass_at_k: Option<f64>,
        pass_hat_k: Option<f64>,
    }
}

row! {
    /// A row of `agent_statistics`.
    #[derive(Debug)]
    struct Statistics {
        agent_name: String,
        metric: String,
        count: u64,
        mean: Option<f64>,
        std: Option<f64>,
        min: Option<f64>,
        median: Option<f64>,
        max: Option<f64>,
    }
}

impl Shown {
    /// The families that are shown.
    pub(super) const FAMILIES: [&str; 4] = [AGENT_STATISTICS, COVERAGE, SPREAD, PASS_AT_K];

    /// Collects the shown columns from the rows of a family. If a user has replaced a family by one with
    /// other columns, shows nothing of it; for the statistics, this is an error.
    pub(super) fn look(&mut self, family: &str, batch: &RecordBatch) -> Result<(), MeasureError> {
        match family {
            AGENT_STATISTICS => self.statistics.extend(Statistics::rows(batch)?),
            COVERAGE => self
                .coverage
                .extend(AgentCoverage::rows(batch).unwrap_or_default()),
            SPREAD => self.spreads.extend(Spread::rows(batch).unwrap_or_default()),
            PASS_AT_K => self.passes.extend(Pass::rows(batch).unwrap_or_default()),
            _ => {}
        }
        Ok(())
    }

    /// Returns whether there was no row of statistics or coverage.
    pub(super) fn is_empty(&self) -> bool {
        self.statistics.is_empty() && self.coverage.is_empty()
    }

    /// Combines the numbers of the families into a report.
    pub(super) fn report(self) -> MetricsReport {
        let metrics = self.statistics.into_iter().map(|row| {
            let is_it = |agent: &str, name: &str| agent == row.agent_name && name == row.metric;
            let mut spreads = self.spreads.iter();
            let spread = spreads.find(|row| is_it(&row.agent_name, &row.metric));
            // A k for which only some tasks have rollouts is not shown: these tasks may be easier or faster.
            let passes = self.passes.iter();
            let passes = passes.filter(|row| is_it(&row.agent_name, &row.metric));
            let passes = passes.filter_map(|row| {
                let pass_at = PassAt {
                    k: row.k,
                    pass_at_k: row.pass_at_k?,
                    pass_hat_k: row.pass_hat_k?,
                };
                Some((row.num_tasks, pass_at))
            });
            let most = passes.clone().map(|(num_tasks, _)| num_tasks).max();
            let of_all = passes.filter(|(num_tasks, _)| Some(*num_tasks) == most);
            let pass_at = of_all.map(|(_, pass_at)| pass_at);
            AgentMetric {
                stderr: spread.and_then(|row| row.stderr),
                pass_at: pass_at.max_by_key(|pass_at| pass_at.k),
                agent_name: row.agent_name,
                metric: row.metric,
                count: row.count,
                mean: row.mean,
                std: row.std,
                min: row.min,
                median: row.median,
                max: row.max,
            }
        });
        MetricsReport {
            metrics: metrics.collect(),
            coverage: self.coverage,
            ..MetricsReport::default()
        }
    }
}
