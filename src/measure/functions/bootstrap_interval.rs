//! The aggregate function `bootstrap_interval`.

use arrow::array::ArrayRef;
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::AggregateUDF;
use datafusion::logical_expr::function::AccumulatorArgs;

use super::aggregate_function::AggregateFunction;
use super::argument::{integer, number};
use super::interval::{struct_of, structs};
use super::list_quantiles::quantile;
use super::moments::Moments;
use super::ordered_rows::{InOrder, OfRows, constant_integer, constant_number, state_types};
use super::random::SplitMix64;
use super::wilson::checked_confidence;

const NAME: &str = "bootstrap_interval";
const NUMBERS: [&str; 3] = ["low", "high", "std"];

/// `bootstrap_interval(numerator DOUBLE, denominator DOUBLE, confidence DOUBLE, resamples BIGINT, seed
/// BIGINT [ORDER BY ...]) -> STRUCT(low DOUBLE, high DOUBLE, std DOUBLE)`: the percentile bootstrap of
/// `sum(numerator) / sum(denominator)` over clusters (A. C. Davison and D. V. Hinkley, "Bootstrap
/// Methods and their Application", 1997, sections 2.4 and 3.8).
///
/// A row is a cluster: a task with the sum of its scores and their number. A resample draws as many
/// rows as there are, with replacement. Because a task is drawn with all its rollouts, the interval
/// is right for repeats, which are more alike within a task than between tasks; drawing rollouts
/// would make it too narrow. `low` and `high` are the quantiles `(1 -+ confidence) / 2` of the
/// resampled quotients (linear between two of them, as NumPy's), `std` their standard deviation, an
/// estimate of the standard error.
///
/// The result is the same for the same seed and the same order of rows, so give an `ORDER BY` that
/// leaves no ties. Groups of one query draw the same rows. Rows with a null are passed over, and
/// resamples with a zero denominator; null where none is left.
pub fn bootstrap_interval() -> AggregateUDF {
    AggregateFunction {
        name: NAME,
        about: "The percentile bootstrap interval of sum(numerator) / sum(denominator) over rows that are \
                clusters (tasks), as a struct of low, high and std; give ORDER BY in the call for a result \
                that only depends on the seed.",
        arguments: vec![
            number("numerator", "The cluster's part of the numerator, such as the sum of a task's scores."),
            number("denominator", "The cluster's part of the denominator, such as the number of its scores."),
            number("confidence", "Probability with which the interval covers the quotient, such as 0.95; a constant."),
            integer("resamples", "How often to draw all clusters anew, such as 1000; a constant."),
            integer("seed", "Start of the random numbers; a constant."),
        ],
        returns: struct_of(&NUMBERS),
        state: state_types(),
        in_order: true,
        groups: |args| Ok(InOrder::groups(Bootstrap::of(args)?, args)),
    }
    .udaf()
}

#[derive(Debug, Clone)]
struct Bootstrap {
    confidence: f64,
    resamples: usize,
    seed: i64,
}

/// Quotients that are kept at a time: 80 MB.
const MAX_RESAMPLES: i64 = 10_000_000;

impl Bootstrap {
    fn of(args: &AccumulatorArgs) -> Result<Self> {
        let confidence = constant_number(NAME, "confidence", args, 2)?;
        let resamples = constant_integer(NAME, "resamples", args, 3)?;
        if !(1..=MAX_RESAMPLES).contains(&resamples) {
            return exec_err!("{NAME}: resamples = {resamples}; give 1 to {MAX_RESAMPLES}");
        }
        Ok(Self {
            confidence: checked_confidence(NAME, confidence)?,
            resamples: usize::try_from(resamples).unwrap_or_default(),
            seed: constant_integer(NAME, "seed", args, 4)?,
        })
    }

    fn interval(&self, clusters: &[[f64; 2]]) -> Option<[Option<f64>; 3]> {
        let mut random = SplitMix64::with_seed(self.seed);
        let mut quotients: Vec<f64> = Vec::with_capacity(self.resamples);
        for _ in 0..self.resamples {
            let (mut numerator, mut denominator) = (0.0, 0.0);
            for _ in 0..clusters.len() {
                if let Some([above, below]) = clusters.get(random.below(clusters.len())) {
                    numerator += above;
                    denominator += below;
                }
            }
            if denominator != 0.0 {
                quotients.push(numerator / denominator);
            }
        }
        let mut moments = Moments::default();
        quotients.iter().for_each(|&quotient| moments.add(quotient));
        quotients.sort_unstable_by(f64::total_cmp);
        let tail = 0.5 * (1.0 - self.confidence);
        let low = quantile(&quotients, tail)?;
        let high = quantile(&quotients, 1.0 - tail)?;
        Some([Some(low), Some(high), moments.std()])
    }
}

impl OfRows<2> for Bootstrap {
    fn evaluate(&self, groups: impl Iterator<Item = Vec<[f64; 2]>>) -> Result<ArrayRef> {
        let intervals: Vec<_> = groups.map(|clusters| self.interval(&clusters)).collect();
        structs(NUMBERS, &intervals)
    }
}
