//! Distributions, tests and intervals: `normal_quantile`, `student_t_quantile`, `chi_squared_sf`, `binomial_test_p` and
//! `wilson_interval`.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, Float64Array};
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::ScalarUDF;
use datafusion::logical_expr::scalar_doc_sections::DOC_SECTION_MATH;
use statrs::function::beta::checked_beta_reg;
use statrs::function::erf::erfc_inv;
use statrs::function::gamma::checked_gamma_ur;

use super::double_double::{DoubleDouble, times_power_of_two};
use super::scalar::{Argument, ScalarFunction, exactly, integer, number, struct_of, structs};

/// `normal_quantile(p DOUBLE) -> DOUBLE`: the quantile of the standard normal distribution at `p`; infinite for 0 and
/// 1. An error unless `p` is from 0 to 1.
pub fn normal_quantile() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_MATH,
        "normal_quantile",
        "The number below which a standard normal variable is with probability p.",
        vec![probability()],
        DataType::Float64,
        |columns| {
            map::<Float64Type, 1>(columns, |[p]| Ok(quantile(checked("normal_quantile", p)?)))
        },
    )
}

/// `student_t_quantile(p DOUBLE, df DOUBLE) -> DOUBLE`: the quantile at `p` of Student's t distribution with `df` degrees
/// of freedom; infinite for 0 and 1, and beyond `1e150`. An error unless `p` is from 0 to 1 and `df` positive.
pub fn student_t_quantile() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_MATH,
        "student_t_quantile",
        "The number below which a variable of Student's t distribution is with probability p.",
        vec![probability(), freedom()],
        DataType::Float64,
        |columns| map::<Float64Type, 2>(columns, |[p, df]| t_quantile(p, df)),
    )
}

/// `chi_squared_sf(x DOUBLE, df DOUBLE) -> DOUBLE`: the probability that a chi-squared variable with `df` degrees of
/// freedom exceeds `x`. With `x = (b - c)^2 / (b + c)` and `df = 1` it is the p-value of the asymptotic McNemar test. An
/// error unless `df` is positive.
pub fn chi_squared_sf() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_MATH,
        "chi_squared_sf",
        "The probability with which a variable of the chi-squared distribution is above x.",
        vec![number("x", "A number."), freedom()],
        DataType::Float64,
        |columns| map::<Float64Type, 2>(columns, |[x, df]| chi_squared_above(x, df)),
    )
}

fn probability() -> Argument {
    number("p", "A probability, from 0 to 1.")
}

fn freedom() -> Argument {
    number(
        "df",
        "Degrees of freedom, positive; they need not be whole.",
    )
}

pub(super) fn checked(function: &str, p: f64) -> Result<f64> {
    if (0.0..=1.0).contains(&p) {
        Ok(p)
    } else {
        exec_err!("{function}: {p} is not a probability; give a number from 0 to 1")
    }
}

/// Returns the probability that a standard normal variable exceeds `x >= 0`. The library's error function has only ten
/// correct digits; its incomplete gamma function has all.
fn above(x: f64) -> f64 {
    0.5 * gamma_above(0.5, 0.5 * x * x)
}

/// Returns the regularized upper incomplete gamma function.
fn gamma_above(shape: f64, x: f64) -> f64 {
    if x == 0.0 || x == f64::INFINITY {
        return f64::from(u8::from(x == 0.0));
    }
    checked_gamma_ur(shape, x).unwrap_or(f64::NAN)
}

/// Returns the quantile of the standard normal distribution at a probability.
pub(super) fn quantile(p: f64) -> f64 {
    let start = -std::f64::consts::SQRT_2 * erfc_inv(2.0 * p);
    if !start.is_finite() || start == 0.0 {
        return start;
    }
    // The library's inverse has about ten correct digits. One step of Newton's method gives the rest, on the smaller
    // tail, whose probability has more digits than the larger one's.
    let (tail, away) = (p.min(1.0 - p), start.abs());
    let density = (-0.5 * away * away).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let step = if density > 0.0 {
        (above(away) - tail) / density
    } else {
        0.0
    };
    (away + step).copysign(start)
}

pub(in crate::measure) fn t_quantile(p: f64, df: f64) -> Result<f64> {
    const NAME: &str = "student_t_quantile";
    let p = checked(NAME, p)?;
    if df == f64::INFINITY {
        return Ok(quantile(p));
    }
    let df = checked_freedom(NAME, df)?;
    let tail = p.min(1.0 - p);
    if tail == 0.0 || tail == 0.5 {
        return Ok(if tail == 0.5 {
            0.0
        } else {
            f64::INFINITY.copysign(p - 0.5)
        });
    }
    let away = if df > MANY {
        expanded_t(quantile(tail).abs(), df)
    } else {
        upper_t(df, tail)
    };
    Ok(away.copysign(p - 0.5))
}

/// Above this many degrees of freedom the expansion has more correct digits than the library's beta function.
const MANY: f64 = 2_000.0;

/// Returns the t quantile for the normal quantile `z`, by the expansion in `1 / df` (M. Abramowitz and I. A. Stegun,
/// "Handbook of Mathematical Functions", 26.7.5).
fn expanded_t(z: f64, df: f64) -> f64 {
    let s = z * z;
    let terms = [
        (s + 1.0) / 4.0,
        ((5.0 * s + 16.0) * s + 3.0) / 96.0,
        (((3.0 * s + 19.0) * s + 17.0) * s - 15.0) / 384.0,
        ((((79.0 * s + 776.0) * s + 1482.0) * s - 1920.0) * s - 945.0) / 92160.0,
    ];
    let sum = terms.iter().rev().fold(0.0, |sum, term| (sum + term) / df);
    z + z * sum
}

/// Above this the square is not a finite double.
const LARGEST_T: f64 = 1e150;

/// Returns the positive number that the variable exceeds with probability `tail < 1/2`, by bisection over the doubles:
/// the tail decreases everywhere.
fn upper_t(df: f64, tail: f64) -> f64 {
    let beta = |a: f64, b: f64, x: f64| checked_beta_reg(a, b, x).unwrap_or(0.0);
    // Near the center the tail keeps few digits of the distance; the central part keeps all.
    let is_above = |t: f64| {
        if tail < 0.25 {
            beta(0.5 * df, 0.5, df / (df + t * t)) > 2.0 * tail
        } else {
            beta(0.5, 0.5 * df, t * t / (df + t * t)) < 1.0 - 2.0 * tail
        }
    };
    let (mut low, mut high) = (1e-150f64, LARGEST_T);
    // Positive doubles are ordered as their bits: 64 steps reach two neighbors.
    loop {
        let middle = f64::from_bits(low.to_bits() + (high.to_bits() - low.to_bits()) / 2);
        if middle <= low || middle >= high {
            return if high < LARGEST_T {
                middle
            } else {
                f64::INFINITY
            };
        }
        if is_above(middle) {
            low = middle
        } else {
            high = middle
        }
    }
}

fn chi_squared_above(x: f64, df: f64) -> Result<f64> {
    let df = checked_freedom("chi_squared_sf", df)?;
    Ok(gamma_above(0.5 * df, 0.5 * x.max(0.0)))
}

/// Fewer degrees of freedom than this are refused, as zero is.
const LEAST: f64 = 1e-9;

fn checked_freedom(function: &str, df: f64) -> Result<f64> {
    if df >= LEAST && df.is_finite() {
        Ok(df)
    } else {
        exec_err!("{function}: {df} degrees of freedom; give a positive number")
    }
}

/// Returns the numbers of each row; `None` where one is null.
fn rows<T: ArrowPrimitiveType, const N: usize>(
    columns: &[ArrayRef],
) -> Result<impl Iterator<Item = Option<[T::Native; N]>>> {
    let columns: &[ArrayRef; N] = exactly(columns)?;
    let columns = columns.each_ref().map(|column| column.as_primitive::<T>());
    let len = columns.first().map_or(0, |column| column.len());
    Ok((0..len).map(move |row| {
        let is_there = columns.iter().all(|column| column.is_valid(row));
        is_there.then(|| columns.map(|column| column.value(row)))
    }))
}

/// Computes a number from each row of numbers; null where one is.
fn map<T: ArrowPrimitiveType, const N: usize>(
    columns: &[ArrayRef],
    of: impl Fn([T::Native; N]) -> Result<f64>,
) -> Result<ArrayRef> {
    let values = rows::<T, N>(columns)?.map(|row| row.map(&of).transpose());
    Ok(Arc::new(values.collect::<Result<Float64Array>>()?))
}

/// `binomial_test_p(successes BIGINT, trials BIGINT) -> DOUBLE`: the two-sided p-value of the exact
/// test that successes and failures are equally likely,
/// `min(1, 2 * sum of C(trials, i) for i <= min(successes, trials - successes) / 2^trials)`.
///
/// With `b` and `c`, the numbers of tasks that flipped each way, `binomial_test_p(b, b + c)` is the
/// exact McNemar test (as `statsmodels.stats.contingency_tables.mcnemar(exact=True)`). Without trials it
/// is 1. An error unless successes are from 0 to `trials`. The time grows with the smaller of successes
/// and failures.
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
        |columns| map::<Int64Type, 2>(columns, two_sided),
    )
}

/// The largest number of trials; it takes about a second.
const MAX_TRIALS: i64 = 100_000_000;

fn two_sided([successes, trials]: [i64; 2]) -> Result<f64> {
    if !(0..=trials).contains(&successes) || trials > MAX_TRIALS {
        return exec_err!(
            "binomial_test_p: {successes} successes in {trials} trials; give 0 <= successes <= trials <= {MAX_TRIALS}"
        );
    }
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
    Ok(times_power_of_two(2.0 * binomial.high * sum, exponent - trials).min(1.0))
}

const BOUNDS: [&str; 2] = ["low", "high"];

/// `wilson_interval(successes DOUBLE, trials DOUBLE, confidence DOUBLE) -> STRUCT(low DOUBLE, high
/// DOUBLE)`: the score interval of a rate (E. B. Wilson, "Probable inference, the law of succession,
/// and statistical inference", JASA 22, 1927): with `p = successes / trials` and `z` the normal
/// quantile, `(p + z^2/2n -+ z sqrt(p (1 - p) / n + z^2/4n^2)) / (1 + z^2/n)`.
///
/// The numbers need not be whole, so that an effective number of trials can be given. Null without trials. An error unless
/// successes are from 0 to `trials` and the confidence is between 0 and 1.
pub fn wilson_interval() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_MATH,
        "wilson_interval",
        "Wilson's score interval of a rate, as a struct of low and high; null without trials.",
        vec![
            number("successes", "Number of successes; it need not be whole."),
            number("trials", "Number of trials; it need not be whole."),
            number(
                "confidence",
                "Probability with which the interval covers the rate, such as 0.95.",
            ),
        ],
        struct_of(&BOUNDS),
        wilson_intervals,
    )
}

fn wilson_intervals(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let intervals = rows::<Float64Type, 3>(columns)?;
    let intervals = intervals.map(|row| {
        let bounds = row.map(interval).transpose()?.flatten();
        Ok(bounds.map(|bounds| bounds.map(Some)))
    });
    structs(BOUNDS, &intervals.collect::<Result<Vec<_>>>()?)
}

/// Returns the confidence, or an error unless it is between 0 and 1.
pub(super) fn checked_confidence(function: &str, confidence: f64) -> Result<f64> {
    if confidence > 0.0 && confidence < 1.0 {
        Ok(confidence)
    } else {
        exec_err!(
            "{function}: confidence = {confidence}; give a number between 0 and 1, such as 0.95"
        )
    }
}

fn interval([successes, trials, confidence]: [f64; 3]) -> Result<Option<[f64; 2]>> {
    let confidence = checked_confidence("wilson_interval", confidence)?;
    if !(0.0..=trials).contains(&successes) || trials.is_infinite() {
        return exec_err!(
            "wilson_interval: {successes} successes in {trials} trials; give 0 <= successes <= trials"
        );
    }
    if trials == 0.0 {
        return Ok(None);
    }
    let z = quantile(0.5 + 0.5 * confidence);
    let (rate, over) = (successes / trials, z * z / trials);
    let center = rate + 0.5 * over;
    let spread = (rate * (1.0 - rate) * over + 0.25 * over * over).sqrt();
    // At the ends both terms are equal, and rounding must not move the bound off 0 or 1.
    let low = if successes == 0.0 {
        0.0
    } else {
        (center - spread) / (1.0 + over)
    };
    let high = if successes == trials {
        1.0
    } else {
        (center + spread) / (1.0 + over)
    };
    Ok(Some([low, high]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use num_bigint::BigInt;
    use num_rational::{BigRational, Ratio};
    use proptest::prelude::*;

    #[test]
    fn quantiles_invert_probabilities() {
        for p in [1e-250, 1e-12, 0.01, 0.3, 0.5, 0.77, 0.999] {
            let z = quantile(p);
            let back = if z < 0.0 { above(-z) } else { 1.0 - above(z) };
            assert!((back - p).abs() <= 1e-12 * p, "{p} {back}");
        }
        assert_eq!(quantile(0.0), f64::NEG_INFINITY);
        assert_eq!(quantile(1.0), f64::INFINITY);
    }

    #[test]
    fn expansion_and_beta_function_agree_where_they_meet() {
        for tail in [1e-6, 0.001, 0.025, 0.2, 0.45] {
            let (expanded, inverted) = (expanded_t(-quantile(tail), MANY), upper_t(MANY, tail));
            assert!(
                (expanded - inverted).abs() < 1e-11 * inverted,
                "{tail}: {expanded} {inverted}"
            );
        }
    }

    #[test]
    fn ends_of_the_ranges() {
        assert_eq!(above(f64::INFINITY), 0.0);
        assert_eq!(above(0.0), 0.5);
        assert!(above(f64::NAN).is_nan());
        assert_eq!(t_quantile(1.0, 3.0).unwrap(), f64::INFINITY);
        assert_eq!(t_quantile(0.5, 3.0).unwrap(), 0.0);
        assert_eq!(t_quantile(0.3, f64::INFINITY).unwrap(), quantile(0.3));
        assert_eq!(chi_squared_above(-1.0, 1.0).unwrap(), 1.0);
        assert_eq!(chi_squared_above(f64::INFINITY, 1.0).unwrap(), 0.0);
        assert_eq!(t_quantile(1e-300, 1.0).unwrap(), f64::NEG_INFINITY);
        for (p, df) in [(1.1, 3.0), (f64::NAN, 3.0), (0.5, 0.0), (0.5, f64::NAN)] {
            assert!(t_quantile(p, df).is_err(), "{p} {df}");
        }
    }

    #[test]
    fn it_is_the_sum_of_binomials() {
        for trials in 0..=200i64 {
            let mut term = BigInt::from(1);
            let mut sum = BigInt::from(0);
            for successes in 0..=trials {
                sum += &term;
                let p = two_sided([successes, trials]).unwrap();
                assert_eq!(p, two_sided([trials - successes, trials]).unwrap());
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
            let p = two_sided([successes, trials]).unwrap();
            assert!((p - expected).abs() < 1e-13 * expected, "{p}");
        }
    }

    proptest! {
        #[test]
        fn bounds_solve_the_score_equation(trials in 1u32..10_000, share in 0.0..=1.0f64, confidence in 0.5..0.999f64) {
            let trials = f64::from(trials);
            let successes = (trials * share).floor();
            let [low, high] = interval([successes, trials, confidence]).unwrap().unwrap();
            let rate = successes / trials;
            prop_assert!(0.0 <= low && low <= rate && rate <= high && high <= 1.0);
            let z = quantile(0.5 + 0.5 * confidence);
            for bound in [low, high] {
                // The rates that a score test does not reject end where (rate - p)^2 = z^2 p (1 - p) / n.
                let (left, right) = ((rate - bound).powi(2), z * z * bound * (1.0 - bound) / trials);
                prop_assert!((left - right).abs() <= 1e-13 * (rate + z * z / trials), "{left} {right}");
            }
            let [fewer_low, fewer_high] = interval([trials - successes, trials, confidence]).unwrap().unwrap();
            prop_assert!((fewer_low - (1.0 - high)).abs() < 1e-13 && (fewer_high - (1.0 - low)).abs() < 1e-13);
        }
    }

    #[test]
    fn ends_are_exact() {
        for trials in [1.0, 7.0, 1000.0] {
            assert_eq!(interval([0.0, trials, 0.95]).unwrap().unwrap()[0], 0.0);
            assert_eq!(interval([trials, trials, 0.95]).unwrap().unwrap()[1], 1.0);
        }
        assert_eq!(interval([0.0, 0.0, 0.95]).unwrap(), None);
        assert!(interval([2.0, 1.0, 0.95]).is_err());
        assert!(interval([1.0, 2.0, 95.0]).is_err());
    }
}
