//! The scalar function `wilson_interval`.

use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::Float64Type;
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::ScalarUDF;
use datafusion::logical_expr::scalar_doc_sections::DOC_SECTION_MATH;

use super::argument::number;
use super::distributions::quantile;
use super::interval::{struct_of, structs};
use super::scalar::ScalarFunction;

const BOUNDS: [&str; 2] = ["low", "high"];

/// `wilson_interval(successes DOUBLE, trials DOUBLE, confidence DOUBLE) -> STRUCT(low DOUBLE, high
/// DOUBLE)`: the score interval of a rate (E. B. Wilson, "Probable inference, the law of succession,
/// and statistical inference", JASA 22, 1927): with `p = successes / trials` and `z` the normal
/// quantile, `(p + z^2/2n -+ z sqrt(p (1 - p) / n + z^2/4n^2)) / (1 + z^2/n)`.
///
/// Numbers need not be whole, so that an effective number of trials can be given. Null without trials;
/// an error for successes outside 0 to `trials` and for a confidence outside 0 to 1.
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
        compute,
    )
}

fn compute(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let [successes, trials, confidence] = columns else {
        return exec_err!("wilson_interval: {} columns instead of 3", columns.len());
    };
    let rows = successes.as_primitive::<Float64Type>().iter();
    let rows = rows.zip(trials.as_primitive::<Float64Type>());
    let rows = rows.zip(confidence.as_primitive::<Float64Type>());
    let intervals = rows.map(|row| match row {
        ((Some(successes), Some(trials)), Some(confidence)) => {
            interval(successes, trials, confidence)
        }
        _ => Ok(None),
    });
    let intervals: Vec<Option<[f64; 2]>> = intervals.collect::<Result<_>>()?;
    let some = |interval: Option<[f64; 2]>| interval.map(|bounds| bounds.map(Some));
    let intervals: Vec<_> = intervals.into_iter().map(some).collect();
    structs(BOUNDS, &intervals)
}

/// An error for a confidence that is none.
pub(super) fn checked_confidence(function: &str, confidence: f64) -> Result<f64> {
    match confidence > 0.0 && confidence < 1.0 {
        true => Ok(confidence),
        false => exec_err!(
            "{function}: confidence = {confidence}; give a number between 0 and 1, such as 0.95"
        ),
    }
}

fn interval(successes: f64, trials: f64, confidence: f64) -> Result<Option<[f64; 2]>> {
    let confidence = checked_confidence("wilson_interval", confidence)?;
    if !(0.0..=trials).contains(&successes) || trials.is_infinite() {
        return exec_err!(
            "wilson_interval: {successes} successes in {trials} trials; give 0 to trials successes"
        );
    }
    if trials == 0.0 {
        return Ok(None);
    }
    let z = quantile(0.5 + 0.5 * confidence);
    let (rate, over) = (successes / trials, z * z / trials);
    let center = rate + 0.5 * over;
    let spread = (rate * (1.0 - rate) * over + 0.25 * over * over).sqrt();
    // At the ends both terms are the same number, and rounding must not move the bound off it.
    let low = match successes == 0.0 {
        true => 0.0,
        false => (center - spread) / (1.0 + over),
    };
    let high = match successes == trials {
        true => 1.0,
        false => (center + spread) / (1.0 + over),
    };
    Ok(Some([low, high]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bounds_solve_the_score_equation(trials in 1u32..10_000, share in 0.0..=1.0f64, confidence in 0.5..0.999f64) {
            let trials = f64::from(trials);
            let successes = (trials * share).floor();
            let [low, high] = interval(successes, trials, confidence).unwrap().unwrap();
            let rate = successes / trials;
            prop_assert!(0.0 <= low && low <= rate && rate <= high && high <= 1.0);
            let z = quantile(0.5 + 0.5 * confidence);
            for bound in [low, high] {
                // The rates that a score test does not reject end where (rate - p)^2 = z^2 p (1 - p) / n.
                let (left, right) = ((rate - bound).powi(2), z * z * bound * (1.0 - bound) / trials);
                prop_assert!((left - right).abs() <= 1e-13 * (rate + z * z / trials), "{left} {right}");
            }
            let [fewer_low, fewer_high] = interval(trials - successes, trials, confidence).unwrap().unwrap();
            prop_assert!((fewer_low - (1.0 - high)).abs() < 1e-13 && (fewer_high - (1.0 - low)).abs() < 1e-13);
        }
    }

    #[test]
    fn ends_are_exact() {
        for trials in [1.0, 7.0, 1000.0] {
            assert_eq!(interval(0.0, trials, 0.95).unwrap().unwrap()[0], 0.0);
            assert_eq!(interval(trials, trials, 0.95).unwrap().unwrap()[1], 1.0);
        }
        assert_eq!(interval(0.0, 0.0, 0.95).unwrap(), None);
        assert!(interval(2.0, 1.0, 0.95).is_err());
        assert!(interval(1.0, 2.0, 95.0).is_err());
    }
}
