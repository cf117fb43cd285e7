//! The results of measuring: [`MetricsReport`], which [`Shown`] builds from the rows of the metric tables, and
//! [`ProfileReport`].

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use arrow::record_batch::RecordBatch;
use datafusion::prelude::SessionContext;
use serde::Serialize;

use super::error::MeasureError;
use super::families::{AGENT_STATISTICS, COVERAGE, is_reserved};
use super::nemo_gym::CompletionSummary;
use super::rows::{Column, Rows, row};
use crate::json::Object;
use crate::schema::{REQUEST, REWARD, TASKS};

const SPREAD: &str = "spread";
const PASS_AT_K: &str = "pass_at_k";

/// The result of measuring.
#[derive(Debug, Default, Serialize)]
pub struct MetricsReport {
    /// The coverage of each agent.
    pub coverage: Vec<AgentCoverage>,
    /// The statistics of every metric, per agent: the reward first, then the other scores, then the other numbers.
    pub metrics: Vec<AgentMetric>,
    /// By what the subsets are made: a column, or a path into the requests or answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
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
    /// Whether it is a score: a number that an environment gives. Others are constants, token counts, answers, and
    /// what the tasks themselves give, such as the expected answer.
    pub is_score: bool,
    /// The subset of the rollouts; `None` for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subset: Option<String>,
    /// Which of the possible values it is: observed, low or high; `None` if there are no bounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound: Option<&'static str>,
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

/// A part of the rollouts, and how those that are missing count.
#[derive(Debug, Clone, Default)]
pub(super) struct Variant {
    /// The subset of the rollouts; `None` for all.
    pub(super) subset: Option<String>,
    /// Which of the possible values are computed; `None` if there are no bounds.
    pub(super) bound: Option<&'static str>,
}

/// The bound of what was observed.
pub(super) const OBSERVED: &str = "observed";

impl Variant {
    /// Whether it is all rollouts as observed.
    pub(super) fn is_whole(&self) -> bool {
        self.subset.is_none() && self.bound.is_none_or(|bound| bound == OBSERVED)
    }
}

/// The rows of the families that are shown, of one variant.
#[derive(Debug, Default)]
pub(super) struct Shown {
    variant: Variant,
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
        wilson_low: Option<f64>,
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

    /// Starts to collect the rows of a variant.
    pub(super) fn of(variant: Variant) -> Self {
        Self {
            variant,
            ..Self::default()
        }
    }

    /// Adds the rows of another family.
    pub(super) fn append(&mut self, mut other: Self) {
        self.coverage.append(&mut other.coverage);
        self.statistics.append(&mut other.statistics);
        self.spreads.append(&mut other.spreads);
        self.passes.append(&mut other.passes);
    }

    /// Returns whether there was no row of statistics or coverage.
    pub(super) fn is_empty(&self) -> bool {
        self.statistics.is_empty() && self.coverage.is_empty()
    }

    /// Combines the numbers of the families.
    fn metrics(self, scores: &BTreeSet<String>) -> impl Iterator<Item = AgentMetric> {
        let Self {
            variant,
            statistics,
            spreads,
            passes,
            ..
        } = self;
        statistics.into_iter().map(move |row| {
            let is_it = |agent: &str, name: &str| agent == row.agent_name && name == row.metric;
            let mut spreads = spreads.iter();
            let spread = spreads.find(|row| is_it(&row.agent_name, &row.metric));
            let is_score = scores.contains(&row.metric);
            // Wilson's interval exists only for a metric that is 0 or 1 in all rollouts; one that is so in those of some
            // tasks only has rows of pass@k as well.
            let is_binary = spread.is_some_and(|row| row.wilson_low.is_some());
            // A k for which only some tasks have rollouts is not shown: these tasks may be easier or faster.
            let passes = passes.iter().filter(|_| is_score && is_binary);
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
                is_score,
                subset: variant.subset.clone(),
                bound: variant.bound,
                agent_name: row.agent_name,
                metric: row.metric,
                count: row.count,
                mean: row.mean,
                std: row.std,
                min: row.min,
                median: row.median,
                max: row.max,
            }
        })
    }
}

/// Combines the variants into a report. `given` are the fields of the tasks ([`given_fields`]).
pub(super) fn report(variants: Vec<Shown>, given: &BTreeSet<String>) -> MetricsReport {
    let scores = scores(&variants, given);
    let mut report = MetricsReport::default();
    for mut shown in variants {
        if shown.variant.is_whole() {
            report.coverage.append(&mut shown.coverage);
        }
        report.metrics.extend(shown.metrics(&scores));
    }
    let mut places = BTreeMap::new();
    for row in &report.metrics {
        let place = places.len();
        let key = (row.agent_name.clone(), row.metric.clone());
        places.entry(key).or_insert(place);
    }
    // The sort is stable: all rollouts come before the subsets, as measured.
    report.metrics.sort_by_cached_key(|row| {
        let key = (row.agent_name.clone(), row.metric.clone());
        let place = places.get(&key).copied();
        let is_reward = row.metric == REWARD;
        (key.0, Reverse(is_reward), Reverse(row.is_score), place)
    });
    report
}

/// Returns the metrics that are scores.
fn scores(variants: &[Shown], given: &BTreeSet<String>) -> BTreeSet<String> {
    let mut ranges: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for row in variants.iter().flat_map(|shown| &shown.statistics) {
        let (Some(min), Some(max)) = (row.min, row.max) else {
            continue;
        };
        let range = ranges.entry(&row.metric).or_insert((min, max));
        *range = (range.0.min(min), range.1.max(max));
    }
    let is_score = |(name, (min, max)): &(&str, (f64, f64))| {
        *name == REWARD || (min < max && !given.contains(*name) && !tells_no_score(name))
    };
    let scores = ranges.into_iter().filter(is_score);
    scores.map(|(name, _)| name.to_owned()).collect()
}

/// Whether the name of a metric tells that it counts tokens, or that it is an answer, given or expected.
fn tells_no_score(name: &str) -> bool {
    let is_count = name == "tokens" || name.ends_with("_tokens");
    let is_answer = name == "answer" || name.ends_with("_answer");
    let is_expected = ["expected_", "ground_truth"];
    is_count
        || is_answer
        || is_expected.iter().any(|start| name.starts_with(start))
        || is_reserved(name)
}

/// The number of tasks that are asked for their fields.
const ASKED_TASKS: usize = 1_000;

/// Returns the names of the fields of the first tasks. An agent that echoes its task has them in its answer, and so
/// among its metrics, but they are no scores.
///
/// # Errors
/// The tasks can't be read.
pub(super) async fn given_fields(
    session: &SessionContext,
) -> Result<BTreeSet<String>, MeasureError> {
    let requests = session.table(TASKS).await?.select_columns(&[REQUEST])?;
    let requests = requests.limit(0, Some(ASKED_TASKS))?;
    let mut requests = Rows::start(requests, |batch| String::read(batch, REQUEST)).await?;
    let mut names = BTreeSet::new();
    while let Some(request) = requests.next().await? {
        // A request that is no object has no fields.
        let fields = Object::parse(&request).unwrap_or_default();
        for name in fields.names() {
            if !names.contains(name) {
                names.insert(name.to_owned());
            }
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_token_counts_and_answers() {
        for name in [
            "output_tokens",
            "tokens",
            "answer",
            "extracted_answer",
            "expected_value",
            "ground_truth",
            "_ng_attempt_index",
        ] {
            assert!(tells_no_score(name), "{name}");
        }
        for name in [
            "reward",
            "accuracy",
            "turns",
            "tokens_per_second",
            "answered",
        ] {
            assert!(!tells_no_score(name), "{name}");
        }
    }
}
