//! The scalar function `best_of_each_k`.

use arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::logical_expr::ScalarUDF;
use datafusion::logical_expr::scalar_doc_sections::DOC_SECTION_MATH;

use super::argument::{list_of, numbers};
use super::compensated::Compensated;
use super::number_lists::ListWriter;
use super::pass_at_k::{Attempts, SCORES, each_k};
use super::scalar::ScalarFunction;

/// `best_of_each_k(values DOUBLE[]) -> DOUBLE[]`: for k = 1, 2, ..., n the expected maximum of k
/// scores drawn without replacement from the n that are not null:
/// `sum_i C(i - 1, k - 1) / C(n, k) * v_(i)` over the scores in ascending order, because `v_(i)` is the
/// maximum of that many of the `C(n, k)` subsets. It is the unbiased estimator of the mean of the
/// best of k, and pass@k where every score is 0 or 1. A null list gives null. The time grows with
/// the square of n where it is not.
pub fn best_of_each_k() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_MATH,
        "best_of_each_k",
        "The expected maximum of k scores drawn without replacement, for each k up to the number of \
         scores: the mean for k = 1, the maximum for k = n.",
        vec![numbers("values", SCORES)],
        list_of(DataType::Float64),
        |columns| each_k(columns, Attempts::OneRight, expected_maxima),
    )
}

fn expected_maxima(scores: &mut [f64], lists: &mut ListWriter) -> Result<()> {
    // The mean adds in the order of the rollouts, as every other mean does.
    let sum: Compensated = scores.iter().copied().collect();
    lists.push(sum.total() / scores.len() as f64);
    scores.sort_unstable_by(|a, b| b.total_cmp(a));
    (2..=scores.len()).for_each(|k| lists.push(expected_maximum(scores, k)));
    lists.end_list()?;
    Ok(())
}

/// Of scores in descending order. The share of subsets whose maximum is the i-th of n is `k / n` for
/// the n-th, and for the one below it `(i - k) / (i - 1)` times as much.
fn expected_maximum(descending: &[f64], k: usize) -> f64 {
    let n = descending.len();
    let mut share = k as f64 / n as f64;
    let mut sum = Compensated::default();
    for (&score, i) in descending.iter().zip((k..=n).rev()) {
        if share == 0.0 {
            break;
        }
        sum.add(share * score);
        share *= (i - k) as f64 / (i - 1) as f64;
    }
    sum.total()
}

#[cfg(test)]
mod tests {
    use super::*;
    use num_bigint::BigInt;
    use num_rational::BigRational;
    use proptest::prelude::*;

    fn descending(mut scores: Vec<f64>) -> Vec<f64> {
        scores.sort_unstable_by(|a, b| b.total_cmp(a));
        scores
    }

    fn binomial(n: usize, k: usize) -> BigInt {
        (0..k).fold(BigInt::from(1), |binomial, i| binomial * (n - i) / (i + 1))
    }

    proptest! {
        #[test]
        fn it_is_the_exact_expectation(scores in prop::collection::vec(0.0..1.0, 1..40)) {
            let scores = descending(scores);
            let n = scores.len();
            let mut before = 0.0;
            for k in 1..=n {
                let terms = scores.iter().rev().enumerate().filter(|(i, _)| i + 1 >= k);
                let sum: BigRational = terms
                    .map(|(i, score)| {
                        let score = BigRational::from_float(*score).unwrap();
                        score * BigRational::new(binomial(i, k - 1), binomial(n, k))
                    })
                    .sum();
                let value = expected_maximum(&scores, k);
                let error = (BigRational::from_float(value).unwrap() - &sum) / sum;
                let bound = BigRational::from_float(1e-14).unwrap();
                prop_assert!(error < bound && -error < bound, "{value}");
                prop_assert!(value >= before * (1.0 - 1e-14));
                before = value;
            }
            prop_assert_eq!(expected_maximum(&scores, n), scores[0]);
        }
    }

    #[test]
    fn ten_thousand_scores_keep_their_digits() {
        // The expected maximum of k out of 1, ..., n is k (n + 1) / (k + 1).
        let n = 10_000;
        let scores: Vec<f64> = (1..=n).rev().map(f64::from).collect();
        for k in [1, 2, 3, 10, 100, 5_000, 9_999, 10_000] {
            let expected = f64::from(k) * f64::from(n + 1) / f64::from(k + 1);
            let value = expected_maximum(&scores, k as usize);
            assert!(
                (value - expected).abs() < 1e-12 * expected,
                "{k}: {value} {expected}"
            );
        }
    }
}
