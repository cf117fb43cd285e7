//! The result of a comparison, [`ComparisonReport`], and the [`ComparisonOptions`] of [`compare`](super::compare()).

use clap::{Args, value_parser};
use serde::Serialize;

use crate::json;
use crate::measure::report::AgentCoverage;
use crate::measure::rows::row;

/// How runs are compared.
#[derive(Debug, Clone, PartialEq, Serialize, Args)]
pub struct ComparisonOptions {
    /// Compare this metric alone; can be given several times
    #[arg(long = "metric", value_name = "NAME")]
    pub metrics: Vec<String>,
    /// Join tasks by this field of theirs instead of by all they ask, such as `id` or `source.id`
    #[arg(long, value_name = "PATH", value_parser = field_path)]
    pub task_key: Option<String>,
    /// Confidence of the intervals; a difference is significant below 1 less this
    #[arg(long, value_name = "SHARE", default_value_t = 0.95, value_parser = share)]
    pub confidence: f64,
    /// Bootstrap samples of each interval
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = value_parser!(u32).range(1..=MAX_DRAWS))]
    pub resamples: u32,
    /// Random flips of signs of each permutation test
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = value_parser!(u32).range(1..=MAX_DRAWS))]
    pub permutations: u32,
    /// Power with which the minimum detectable effect (MDE) is found
    #[arg(long, value_name = "SHARE", default_value_t = 0.8, value_parser = share)]
    pub power: f64,
    /// Seed of what is random: the same seed, the same numbers
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Bytes of memory for what can go to temporary files.
    #[arg(skip)]
    #[serde(skip)]
    pub memory: usize,
}

/// Most draws: more take long and change nothing that is shown.
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

impl Default for ComparisonOptions {
    fn default() -> Self {
        Self {
            metrics: Vec::new(),
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
    /// How they are compared.
    pub options: ComparisonOptions,
    /// Which tasks they have in common: one for each pair of agents.
    pub overlaps: Vec<Overlap>,
    /// Each metric of each pair, the reward first.
    pub comparisons: Vec<MetricComparison>,
    /// Metrics that no common task has on both sides.
    pub left_out: Vec<MetricOverlap>,
    /// The tasks that flipped, where they were asked for.
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

/// How far two agents worked on the same tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Overlap {
    /// The candidate.
    pub candidate: String,
    /// Agent of the base.
    pub base_agent: String,
    /// Agent of the candidate.
    pub candidate_agent: String,
    /// In tasks.
    #[serde(flatten)]
    pub counts: OverlapCounts,
}

row! {
    /// How far two agents worked on the same tasks, in tasks.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
    pub struct OverlapCounts {
        /// Both have them.
        pub in_common: u64,
        /// The candidate does not have them.
        pub only_in_base: u64,
        /// The base does not have them.
        pub only_in_candidate: u64,
        /// Of the base: they ask what an earlier one asks, and are taken together with it.
        pub base_pooled: u64,
        /// The same of the candidate.
        pub candidate_pooled: u64,
        /// Of the base: they do not have the field that tells tasks apart, and are left out.
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
        /// Mean over the tasks of the mean of their rollouts. NaN, as the other two, where the sum is too large
        /// for a double.
        pub base_mean: f64,
        /// The same of the candidate.
        pub candidate_mean: f64,
        /// The mean of the candidate less that of the base.
        pub difference: f64,
        /// Standard error of the difference, clustered by task; none for one task.
        pub stderr: Option<f64>,
        /// Lower bound of the difference.
        pub ci_low: Option<f64>,
        /// Upper bound of the difference.
        pub ci_high: Option<f64>,
        /// What the p-value is of: `mcnemar_exact`, `mcnemar`, `mcnemar_clustered` or `permutation`.
        pub test: String,
        /// Probability of such a difference or a larger one, either way, if there is none.
        pub p_value: Option<f64>,
        /// The same after Holm's correction for all rows of the report.
        pub p_holm: Option<f64>,
        /// Whether that is below 1 less the confidence.
        pub significant: bool,
        /// Smallest true difference that a single test would find with the power asked for.
        pub mde: Option<f64>,
        /// Whether all scores are 0 or 1.
        pub is_binary: bool,
        /// Tasks that flipped for the better: solved by the candidate alone, or of a metric that is not
        /// binary, with a larger mean.
        pub gained: u64,
        /// Tasks that flipped for the worse.
        pub lost: u64,
    }
}

impl MetricComparison {
    /// Leaves out what is no number or infinite, for which JSON has no word.
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
    /// A metric that a side of a pair has on common tasks, and on how many.
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
    /// Where it is.
    pub path: String,
    /// Its rows.
    pub num_rows: u64,
}
