//! The aggregate function `sign_flip_p`.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array};
use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::AggregateUDF;
use datafusion::logical_expr::function::AccumulatorArgs;

use super::aggregate_function::AggregateFunction;
use super::argument::{integer, number};
use super::ordered_rows::{InOrder, OfRows, constant_integer, state_types};
use super::random::SplitMix64;

const NAME: &str = "sign_flip_p";

/// `sign_flip_p(difference DOUBLE, permutations BIGINT, seed BIGINT [ORDER BY ...]) -> DOUBLE`: the
/// two-sided p-value of the paired permutation test of `mean(difference) = 0`, which gives each
/// difference either sign with the same probability (R. A. Fisher, "The Design of Experiments",
/// 1935, section 21): the share of sign patterns whose sum is at least as far from zero as the one seen.
///
/// With at most 16 differences other than zero every pattern is counted. Otherwise as many as
/// `permutations` are drawn, and the one seen counts as one more: `(hits + 1) / (permutations + 1)`
/// (B. Phipson and G. K. Smyth, "Permutation P-values Should Never Be Zero", 2010). Sums that differ
/// by a rounding error count as equal.
///
/// The result is the same for the same seed and the same order of rows. Nulls are passed over; 1 where
/// every difference is zero, null where there is none.
pub fn sign_flip_p() -> AggregateUDF {
    AggregateFunction {
        name: NAME,
        about: "The two-sided p-value of the paired permutation test of mean(difference) = 0: exact for at \
                most 16 differences that are not zero, else by drawing sign patterns; give ORDER BY in the \
                call for a result that only depends on the seed.",
        arguments: vec![
            number("difference", "The difference of a pair, such as that of a task's scores of two agents."),
            integer("permutations", "How many sign patterns to draw, such as 10000; a constant."),
            integer("seed", "Start of the random numbers; a constant."),
        ],
        returns: DataType::Float64,
        state: state_types(),
        in_order: true,
        groups: |args| Ok(InOrder::groups(SignFlip::of(args)?, args)),
    }
    .udaf()
}

/// Differences up to which all patterns are counted: 65,536 of them.
const EXACT: usize = 16;
const MAX_PERMUTATIONS: i64 = 1_000_000_000;

#[derive(Debug, Clone)]
struct SignFlip {
    permutations: i64,
    seed: i64,
}

impl SignFlip {
    fn of(args: &AccumulatorArgs) -> Result<Self> {
        let permutations = constant_integer(NAME, "permutations", args, 1)?;
        if !(1..=MAX_PERMUTATIONS).contains(&permutations) {
            return exec_err!(
                "{NAME}: permutations = {permutations}; give 1 to {MAX_PERMUTATIONS}"
            );
        }
        Ok(Self {
            permutations,
            seed: constant_integer(NAME, "seed", args, 2)?,
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

/// The sum of at most 64 differences, each negated if its bit is set.
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
