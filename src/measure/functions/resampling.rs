//! Aggregate functions that draw random samples: `bootstrap_interval` and `sign_flip_p`, with their generator
//! [`SplitMix64`].

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array};
use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::AggregateUDF;
use datafusion::logical_expr::function::AccumulatorArgs;

use super::aggregate::{AggregateFunction, saved};
use super::inference::checked_confidence;
use super::lists::quantile;
use super::ordered_rows::{InOrder, OfRows, constant};
use super::scalar::{integer, number, struct_of, structs};
use super::summary_each::Moments;

const BOOTSTRAP: &str = "bootstrap_interval";
const NUMBERS: [&str; 3] = ["low", "high", "std"];

/// `bootstrap_interval(numerator DOUBLE, denominator DOUBLE, confidence DOUBLE, resamples BIGINT, seed
/// BIGINT [ORDER BY ...]) -> STRUCT(low DOUBLE, high DOUBLE, std DOUBLE)`: the percentile bootstrap of
/// `sum(numerator) / sum(denominator)` over clusters (A. C. Davison and D. V. Hinkley, "Bootstrap
/// Methods and their Application", 1997, sections 2.4 and 3.8).
///
/// A row is a cluster: a task with the sum and the number of its scores. A resample draws as many rows as
/// there are, with replacement. Drawing tasks with all their rollouts keeps the interval right, since
/// repeats of a task resemble each other; drawing rollouts would make it too narrow. `low` and `high` are
/// the quantiles `(1 -+ confidence) / 2` of the resampled quotients (interpolated linearly, as NumPy
/// does), `std` their standard deviation, an estimate of the standard error.
///
/// The same seed and the same order of rows give the same result, so write an `ORDER BY` without ties. Groups
/// of one query draw the same rows. Rows with a null and resamples with a zero denominator are left out;
/// null if nothing remains.
pub fn bootstrap_interval() -> AggregateUDF {
    AggregateFunction {
        name: BOOTSTRAP,
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
        state: saved(),
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

/// The most quotients (80 MB a group).
const MAX_RESAMPLES: i64 = 10_000_000;

/// The most groups that rows are drawn for at a time.
const TOGETHER: usize = 8;

impl Bootstrap {
    fn of(args: &AccumulatorArgs) -> Result<Self> {
        let confidence = constant(BOOTSTRAP, "confidence", args, 2)?;
        let resamples = constant(BOOTSTRAP, "resamples", args, 3)?;
        if !(1..=MAX_RESAMPLES).contains(&resamples) {
            return exec_err!("{BOOTSTRAP}: resamples = {resamples}; give 1 to {MAX_RESAMPLES}");
        }
        Ok(Self {
            confidence: checked_confidence(BOOTSTRAP, confidence)?,
            resamples: usize::try_from(resamples).unwrap_or_default(),
            seed: constant(BOOTSTRAP, "seed", args, 4)?,
        })
    }

    /// Returns the intervals of groups that have as many clusters each.
    fn intervals(&self, groups: &[Vec<[f64; 2]>]) -> Vec<Option<[Option<f64>; 3]>> {
        let len = groups.first().map_or(0, Vec::len);
        let mut random = SplitMix64::with_seed(self.seed);
        let (mut drawn, mut times) = (vec![0; len], vec![0; len]);
        let mut groups: Vec<_> = groups
            .iter()
            .map(|clusters| (Parts::of(clusters), Vec::with_capacity(self.resamples)))
            .collect();
        for _ in 0..self.resamples {
            times.fill(0);
            for row in &mut drawn {
                *row = random.below(len);
                if let Some(times) = times.get_mut(*row) {
                    // No row is ever drawn so often that the number is too small for it.
                    *times = u16::saturating_add(*times, 1);
                }
            }
            for (parts, quotients) in &mut groups {
                let [numerator, denominator] = parts.sums(&drawn, &times);
                if denominator != 0.0 {
                    quotients.push(numerator / denominator);
                }
            }
        }
        let intervals = groups.into_iter().map(|(_, drawn)| self.interval(drawn));
        intervals.collect()
    }

    fn interval(&self, mut quotients: Vec<f64>) -> Option<[Option<f64>; 3]> {
        let mut moments = Moments::default();
        quotients.iter().for_each(|&quotient| moments.add(quotient));
        quotients.sort_unstable_by(f64::total_cmp);
        let tail = 0.5 * (1.0 - self.confidence);
        let low = quantile(&quotients, tail)?;
        let high = quantile(&quotients, 1.0 - tail)?;
        Some([Some(low), Some(high), moments.std()])
    }
}

/// The parts that the clusters of a group have of the quotient.
enum Parts<'a> {
    /// Their sums are exact in any order: those of rows that are drawn several times come from a product.
    Exact([Multiples; 2]),
    InOrder(&'a [[f64; 2]]),
}

impl<'a> Parts<'a> {
    fn of(clusters: &'a [[f64; 2]]) -> Self {
        let column = |at: fn(&[f64; 2]) -> f64| Multiples::of(clusters.iter().map(at));
        match (column(|part| part[0]), column(|part| part[1])) {
            (Some(above), Some(below)) => Self::Exact([above, below]),
            _ => Self::InOrder(clusters),
        }
    }

    /// Returns the sums of numerators and denominators over the rows that were drawn, each so many times.
    fn sums(&self, drawn: &[usize], times: &[u16]) -> [f64; 2] {
        match self {
            Self::Exact(columns) => columns.each_ref().map(|column| column.sum(times)),
            Self::InOrder(clusters) => {
                let clusters = drawn.iter().filter_map(|row| clusters.get(*row));
                clusters.fold([0.0; 2], |[above, below], cluster| {
                    [above + cluster[0], below + cluster[1]]
                })
            }
        }
    }
}

/// Numbers that are small multiples of one unit.
struct Multiples {
    unit: f64,
    least: f64,
    /// By how many units each number is above the least; empty if none is.
    above: Vec<u16>,
}

/// The smallest unit is 2 to the power of minus this.
const FINEST: i32 = 10;

impl Multiples {
    fn of(numbers: impl ExactSizeIterator<Item = f64> + Clone) -> Option<Self> {
        let len = numbers.len() as f64;
        let least = numbers.clone().fold(f64::INFINITY, f64::min);
        let most = numbers.clone().fold(f64::NEG_INFINITY, f64::max);
        let mut units = (0..=FINEST).map(|power| f64::from(-power).exp2());
        let unit =
            units.find(|unit| numbers.clone().all(|number| (number / unit).fract() == 0.0))?;
        let is_exact = least.abs().max(most.abs()) / unit * len < 1.0 / f64::EPSILON;
        let is_small = (most - least) / unit <= f64::from(u16::MAX);
        let above = |number: f64| ((number - least) / unit) as u16;
        (is_exact && is_small).then(|| Self {
            unit,
            least,
            above: numbers.filter(|_| most > least).map(above).collect(),
        })
    }

    /// Returns the sum of the numbers, each so many times.
    fn sum(&self, times: &[u16]) -> f64 {
        let products = self.above.iter().zip(times);
        let products =
            products.map(|(&above, &times)| u64::from(u32::from(above) * u32::from(times)));
        (self.least / self.unit * times.len() as f64 + products.sum::<u64>() as f64) * self.unit
    }
}

impl OfRows<2> for Bootstrap {
    fn evaluate(&self, groups: impl Iterator<Item = Vec<[f64; 2]>>) -> Result<ArrayRef> {
        let groups: Vec<_> = groups.collect();
        let alike = groups.chunk_by(|one, next| one.len() == next.len());
        let together = alike.flat_map(|alike| alike.chunks(TOGETHER));
        let intervals: Vec<_> = together.flat_map(|groups| self.intervals(groups)).collect();
        structs(NUMBERS, &intervals)
    }
}

const SIGN_FLIP: &str = "sign_flip_p";

/// `sign_flip_p(difference DOUBLE, permutations BIGINT, seed BIGINT [ORDER BY ...]) -> DOUBLE`: the
/// two-sided p-value of the paired permutation test of `mean(difference) = 0` (R. A. Fisher, "The Design
/// of Experiments", 1935, section 21). Each difference has either sign with the same probability; the
/// p-value is the share of sign patterns whose sum is at least as far from zero as the observed one.
///
/// With at most 16 differences other than zero every pattern is counted. Otherwise `permutations` patterns
/// are drawn, and the observed one is added: `(hits + 1) / (permutations + 1)` (B. Phipson and G. K. Smyth,
/// "Permutation P-values Should Never Be Zero", 2010). Sums that differ by a rounding error count as equal.
///
/// The same seed and the same order of rows give the same result. Nulls are left out; 1 if every difference
/// is zero, null if there is none.
pub fn sign_flip_p() -> AggregateUDF {
    AggregateFunction {
        name: SIGN_FLIP,
        about: "The two-sided p-value of the paired permutation test of mean(difference) = 0: exact for at \
                most 16 differences that are not zero, else by drawing sign patterns; give ORDER BY in the \
                call for a result that only depends on the seed.",
        arguments: vec![
            number("difference", "The difference of a pair, such as that of a task's scores of two agents."),
            integer("permutations", "How many sign patterns to draw, such as 10000; a constant."),
            integer("seed", "Start of the random numbers; a constant."),
        ],
        returns: DataType::Float64,
        state: saved(),
        in_order: true,
        groups: |args| Ok(InOrder::groups(SignFlip::of(args)?, args)),
    }
    .udaf()
}

/// Up to this many differences all patterns are counted (65,536).
const EXACT: usize = 16;
const MAX_PERMUTATIONS: i64 = 1_000_000_000;

#[derive(Debug, Clone)]
struct SignFlip {
    permutations: i64,
    seed: i64,
}

impl SignFlip {
    fn of(args: &AccumulatorArgs) -> Result<Self> {
        let permutations = constant(SIGN_FLIP, "permutations", args, 1)?;
        if !(1..=MAX_PERMUTATIONS).contains(&permutations) {
            return exec_err!(
                "{SIGN_FLIP}: permutations = {permutations}; give 1 to {MAX_PERMUTATIONS}"
            );
        }
        Ok(Self {
            permutations,
            seed: constant(SIGN_FLIP, "seed", args, 2)?,
        })
    }

    fn p(&self, rows: &[[f64; 1]]) -> Option<f64> {
        if rows.is_empty() {
            return None;
        }
        let differences: Vec<f64> = rows
            .iter()
            .flatten()
            .copied()
            .filter(|d| *d != 0.0)
            .collect();
        let observed = differences.iter().sum::<f64>().abs();
        let magnitude: f64 = differences.iter().map(|difference| difference.abs()).sum();
        if !magnitude.is_finite() {
            return Some(f64::NAN);
        }
        // Sums of up to millions of terms in another order differ by less than this.
        let least = observed - 1e-12 * magnitude;
        if differences.len() <= EXACT {
            let patterns = 1u64 << differences.len();
            let hits = (0..patterns).filter(|&signs| flipped(&differences, signs).abs() >= least);
            return Some(hits.count() as f64 / patterns as f64);
        }
        let mut random = SplitMix64::with_seed(self.seed);
        let mut hits = 0;
        for _ in 0..self.permutations {
            let sum: f64 = differences
                .chunks(64)
                .map(|chunk| flipped(chunk, random.next()))
                .sum();
            hits += i64::from(sum.abs() >= least);
        }
        Some((hits + 1) as f64 / (self.permutations + 1) as f64)
    }
}

/// Returns the sum of at most 64 differences, each negated if its bit is set.
fn flipped(differences: &[f64], mut signs: u64) -> f64 {
    let mut sum = 0.0;
    for difference in differences {
        sum += f64::from_bits(difference.to_bits() ^ (signs << 63));
        signs >>= 1;
    }
    sum
}

impl OfRows<1> for SignFlip {
    fn evaluate(&self, groups: impl Iterator<Item = Vec<[f64; 1]>>) -> Result<ArrayRef> {
        let values = groups.map(|rows| self.p(&rows));
        Ok(Arc::new(values.collect::<Float64Array>()))
    }
}

/// The generator of G. L. Steele, D. Lea and C. H. Flood, "Fast splittable pseudorandom number
/// generators", OOPSLA 2014. It stands here because the streams of a library may change between
/// versions, and a seed must give the same p-value next year.
#[derive(Debug, Clone)]
pub(super) struct SplitMix64(u64);

impl SplitMix64 {
    pub(super) fn with_seed(seed: i64) -> Self {
        Self(seed.cast_unsigned())
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`. Their probabilities differ by at most `bound / 2^64`.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        let product = u128::from(self.next()) * bound as u128;
        (product >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_that_of_the_reference_implementation() {
        // https://prng.di.unimi.it/splitmix64.c with seed 1234567
        let mut random = SplitMix64::with_seed(1_234_567);
        let stream: Vec<u64> = (0..5).map(|_| random.next()).collect();
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(stream, expected);
    }

    #[test]
    fn every_number_below_the_bound_is_as_likely() {
        let mut random = SplitMix64::with_seed(1);
        let mut counts = [0u32; 7];
        (0..70_000).for_each(|_| counts[random.below(7)] += 1);
        // Seven standard deviations of a count.
        assert!(
            counts.iter().all(|count| count.abs_diff(10_000) < 650),
            "{counts:?}"
        );
    }
}
