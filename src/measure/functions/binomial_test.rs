//! The scalar function `binomial_test_p`.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::ScalarUDF;
use datafusion::logical_expr::scalar_doc_sections::DOC_SECTION_MATH;

use super::argument::integer;
use super::double_double::{DoubleDouble, times_power_of_two};
use super::scalar::ScalarFunction;

/// `binomial_test_p(successes BIGINT, trials BIGINT) -> DOUBLE`: the two-sided p-value of the exact
/// test that successes and failures are equally likely,
/// `min(1, 2 * sum of C(trials, i) for i <= min(successes, trials - successes) / 2^trials)`.
///
/// With `b` and `c`, the numbers of tasks that flipped each way, `binomial_test_p(b, b + c)` is the
/// exact McNemar test (as `statsmodels.stats.contingency_tables.mcnemar(exact=True)`). 1 without
/// trials; an error for successes outside 0 to `trials`. The time grows with the smaller of
/// successes and failures.
pub fn binomial_test_p() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_MATH,
        "binomial_test_p",
        "The two-sided exact p-value of the hypothesis that successes and failures are equally likely: \
         the exact McNemar test with b successes in b + c trials.",
        vec![
            integer("successes", "Number of successes."),
            integer("trials", "Number of successes and failures."),
        ],
        DataType::Float64,
        compute,
    )
}

/// Trials that take about a second.
const MAX_TRIALS: i64 = 100_000_000;

fn compute(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let [successes, trials] = columns else {
        return exec_err!("binomial_test_p: {} columns instead of 2", columns.len());
    };
    let rows = successes.as_primitive::<Int64Type>().iter();
    let rows = rows.zip(trials.as_primitive::<Int64Type>());
    let values = rows.map(|row| {
        let (Some(successes), Some(trials)) = row else {
            return Ok(None);
        };
        if !(0..=trials).contains(&successes) || trials > MAX_TRIALS {
            return exec_err!(
                "binomial_test_p: {successes} successes in {trials} trials; give 0 to trials successes in at most {MAX_TRIALS} trials"
            );
        }
        Ok(Some(two_sided(successes, trials)))
    });
    let values: Float64Array = values.collect::<Result<_>>()?;
    Ok(Arc::new(values))
}

fn two_sided(successes: i64, trials: i64) -> f64 {
    let fewer = successes.min(trials - successes);
    // C(trials, fewer) as `binomial * 2^exponent`.
    let mut binomial = DoubleDouble::from(1.0);
    let mut exponent = 0;
    for i in 1..=fewer {
        let product = binomial.times_double((trials - fewer + i) as f64);
        binomial = product.divided_by(i as f64);
        if binomial.high > 1e150 {
            const STEP: i32 = 400;
            binomial = binomial.times_double(2f64.powi(-STEP));
            exponent += i64::from(STEP);
        }
    }
    // The sum in units of its last and largest term.
    let mut sum = 1.0;
    let mut term = 1.0;
    for i in (1..=fewer).rev() {
        term *= i as f64 / (trials - i + 1) as f64;
        sum += term;
        if term < f64::EPSILON * f64::EPSILON {
            break;
        }
    }
    times_power_of_two(2.0 * binomial.high * sum, exponent - trials).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use num_bigint::BigInt;
    use num_rational::BigRational;
    use num_rational::Ratio;

    #[test]
    fn it_is_the_sum_of_binomials() {
        for trials in 0..=200i64 {
            let mut term = BigInt::from(1);
            let mut sum = BigInt::from(0);
            for successes in 0..=trials {
                sum += &term;
                let p = two_sided(successes, trials);
                assert_eq!(p, two_sided(trials - successes, trials));
                if 2 * successes <= trials {
                    let exact: BigRational =
                        Ratio::new(&sum * 2, BigInt::from(2).pow(trials as u32));
                    let exact = exact.min(Ratio::from_integer(1.into()));
                    let error = Ratio::from_float(p).unwrap() / exact - BigInt::from(1);
                    let bound = Ratio::from_float(1e-14).unwrap();
                    assert!(error < bound && -error < bound, "{successes} {trials} {p}");
                }
                term = term * (trials - successes) / (successes + 1);
            }
        }
    }

    #[test]
    fn many_trials_keep_their_digits() {
        // Exact sums in rational arithmetic, rounded once.
        for (successes, trials, expected) in [
            (2_400, 5_000, 0.004883649737517518),
            (20_000, 41_000, 8.058578026792959e-07),
        ] {
            let p = two_sided(successes, trials);
            assert!((p - expected).abs() < 1e-13 * expected, "{p}");
        }
    }
}
