//! The result of a comparison, [`ComparisonReport`], and the [`ComparisonOptions`] of [`compare`](super::compare()).

use clap::{Args, value_parser};
use serde::Serialize;

use crate::json;
use crate::measure::report::AgentCoverage;
use crate::measure::rows::row;
use crate::schema::REWARD;

/// How runs are compared.
#[derive(Debug, Clone, PartialEq, Serialize, Args)]
pub struct ComparisonOptions {
    /// Compare this metric; can be given several times
    #[arg(long = "metric", value_name = "NAME", default_value = REWARD)]
    pub metrics: Vec<String>,
    /// Compare all metrics, in place of those of --metric
    #[arg(long, conflicts_with = "metrics")]
    pub all: bool,
    /// Match tasks by this field, such as `id` or `source.id`, instead of by their whole content
    #[arg(long, value_name = "PATH", value_parser = field_path)]
    pub task_key: Option<String>,
    /// Confidence of the intervals; a difference is significant if its p-value is below 1 minus this
    #[arg(long, value_name = "SHARE", default_value_t = 0.95, value_parser = share)]
    pub confidence: f64,
    /// Number of bootstrap samples of each interval
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = value_parser!(u32).range(1..=MAX_DRAWS))]
    pub resamples: u32,
    /// Number of random sign patterns of each permutation test
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = value_parser!(u32).range(1..=MAX_DRAWS))]
    pub permutations: u32,
    /// Power at which the minimum detectable effect (MDE) is computed
    #[arg(long, value_name = "SHARE", default_value_t = 0.8, value_parser = share)]
    pub power: f64,
    /// Seed of the random numbers: the same seed gives the same results
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Memory in bytes that queries may use before they spill to temporary files.
    #[arg(skip)]
    #[serde(skip)]
    pub memory: usize,
}

/// The largest number of draws: more take long and change nothing that is shown.
const MAX_DRAWS: i64 = 1_000_000;

fn field_path(text: &str) -> Result<String, String> {
    let path = json::Path::parse(text);
    path.map(|_| text.to_owned())
        .map_err(|error| error.to_string())
}

fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if share > 0.0 && share < 1.0 {
        Ok(share)
    } else {
        Err("give a number between 0 and 1, such as 0.95".to_owned())
    }
}

impl ComparisonOptions {
    /// Whether a metric is to be compared.
    pub(super) fn wants(&self, metric: &str) -> bool {
        self.all || self.metrics.iter().any(|name| name == metric)
    }
}

impl Default for ComparisonOptions {
    fn default() -> Self {
        Self {
            metrics: vec![REWARD.to_owned()],
            all: false,
            task_key: None,
            confidence: 0.95,
            resamples: 2000,
            permutations: 10_000,
            power: 0.8,
            seed: 0,
            memory: 256_000_000,
        }
    }
}

/// The result of comparing candidates with a base.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComparisonReport {
    /// The base of the comparison.
    pub base: ComparedRun,
    /// The others, in the order given.
    pub candidates: Vec<ComparedRun>,
    /// The options of the comparison.
    pub options: ComparisonOptions,
    /// The overlap of the tasks of each pair of agents.
    pub overlaps: Vec<Overlap>,
    /// Each metric of each pair, the reward first.
    pub comparisons: Vec<MetricComparison>,
    /// Metrics without a score on both sides of any common task.
    pub left_out: Vec<MetricOverlap>,
    /// The file of the tasks that flipped, if it was asked for.
    pub flips: Option<FlipsFile>,
}

/// A side of a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ComparedRun {
    /// Its name in the report.
    pub name: String,
    /// Where the run is.
    pub place: String,
    /// The agents that are compared, and their coverage.
    pub agents: Vec<AgentCoverage>,
}

/// The overlap of the tasks of two agents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Overlap {
    /// The candidate.
    pub candidate: String,
    /// Agent of the base.
    pub base_agent: String,
    /// Agent of the candidate.
    pub candidate_agent: String,
    /// The numbers of tasks.
    #[serde(flatten)]
    pub counts: OverlapCounts,
}

row! {
    /// The overlap of the tasks of two agents, as numbers of tasks.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
    pub struct OverlapCounts {
        /// Tasks that both agents have.
        pub in_common: u64,
        /// Tasks that the candidate does not have.
        pub only_in_base: u64,
        /// Tasks that the base does not have.
        pub only_in_candidate: u64,
        /// Tasks of the base with the key of an earlier task, with which they are pooled.
        pub base_pooled: u64,
        /// The same of the candidate.
        pub candidate_pooled: u64,
        /// Tasks of the base that lack the key field and are left out.
        pub base_without_key: u64,
        /// The same of the candidate.
        pub candidate_without_key: u64,
    }
}

row! {
    /// A row of `comparisons.sql`: a metric of a candidate, over the tasks that it has in common with the
    /// base. Each task weighs the same.
    #[derive(Debug, Clone, PartialEq, Serialize)]
    pub struct MetricComparison {
        /// The metric.
        pub metric: String,
        /// The candidate.
        pub candidate: String,
        /// Agent of the base.
        pub base_agent: String,
        /// Agent of the candidate.
        pub candidate_agent: String,
        /// Common tasks that have a score on both sides.
        pub num_tasks: u64,
        /// Common tasks that have no score in the base.
        pub without_base: u64,
        /// Common tasks that have no score in the candidate.
        pub without_candidate: u64,
        /// Mean over the tasks of the mean of their rollouts. Like the next two fields, NaN if the sum is too large
        /// for a double.
        pub base_mean: f64,
        /// The same of the candidate.
        pub candidate_mean: f64,
        /// The mean of the candidate minus that of the base.
        pub difference: f64,
        /// Standard error of the difference, clustered by task; none for one task.
        pub stderr: Option<f64>,
        /// Lower bound of the difference.
        pub ci_low: Option<f64>,
        /// Upper bound of the difference.
        pub ci_high: Option<f64>,
        /// The test that gave the p-value: `mcnemar_exact`, `mcnemar`, `mcnemar_clustered` or `permutation`.
        pub test: String,
        /// Two-sided probability of such a difference or a larger one, if there is no true difference.
        pub p_value: Option<f64>,
        /// The p-value after Holm's correction for all rows of the report.
        pub p_holm: Option<f64>,
        /// Whether `p_holm` is below 1 minus the confidence.
        pub significant: bool,
        /// Smallest true difference that a single test would find with the given power.
        pub mde: Option<f64>,
        /// Whether all scores are 0 or 1.
        pub is_binary: bool,
        /// Tasks that flipped for the better: only the candidate solves them or, for a metric that is not
        /// binary, its mean is larger.
        pub gained: u64,
        /// Tasks that flipped for the worse.
        pub lost: u64,
    }
}

impl MetricComparison {
    /// Whether the mean of the candidate is significantly lower than that of the base.
    pub fn is_worse(&self) -> bool {
        self.significant && self.difference < 0.0
    }

    /// Replaces numbers that are not finite by NaN or `None`, since JSON has neither.
    pub(super) fn finite(mut self) -> Self {
        for number in [
            &mut self.base_mean,
            &mut self.candidate_mean,
            &mut self.difference,
        ] {
            if number.is_infinite() {
                *number = f64::NAN;
            }
        }
        for number in [
            &mut self.stderr,
            &mut self.ci_low,
            &mut self.ci_high,
            &mut self.p_value,
            &mut self.p_holm,
            &mut self.mde,
        ] {
            *number = number.filter(|number| number.is_finite());
        }
        self
    }
}

row! {
    /// A metric that a side of a pair has, and the numbers of common tasks that have it.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize)]
    pub struct MetricOverlap {
        /// The metric.
        pub metric: String,
        /// The candidate.
        pub candidate: String,
        /// Agent of the base.
        pub base_agent: String,
        /// Agent of the candidate.
        pub candidate_agent: String,
        /// Common tasks that have a score on both sides.
        #[serde(skip)]
        pub num_tasks: u64,
        /// Common tasks that have a score in the base.
        pub base_tasks: u64,
        /// Common tasks that have a score in the candidate.
        pub candidate_tasks: u64,
    }
}

/// A Parquet file of tasks that flipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FlipsFile {
    /// The path of the file.
    pub path: String,
    /// The number of its rows.
    pub num_rows: u64,
}
