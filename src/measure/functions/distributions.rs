//! The scalar functions `normal_quantile`, `normal_cdf`, `student_t_quantile` and `chi_squared_sf`.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array};
use arrow::datatypes::{DataType, Float64Type};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::ScalarUDF;
use datafusion::logical_expr::scalar_doc_sections::DOC_SECTION_MATH;
use statrs::function::beta::checked_beta_reg;
use statrs::function::erf::erfc_inv;
use statrs::function::gamma::checked_gamma_ur;

use super::argument::{Argument, number};
use super::scalar::ScalarFunction;

/// `normal_quantile(p DOUBLE) -> DOUBLE`: the number below which a standard normal variable is with
/// probability `p`; infinite for 0 and 1, an error for what is no probability.
pub fn normal_quantile() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_MATH,
        "normal_quantile",
        "The number below which a standard normal variable is with probability p.",
        vec![probability()],
        DataType::Float64,
        |columns| {
            map_one("normal_quantile", columns, |p| {
                Ok(quantile(checked("normal_quantile", p)?))
            })
        },
    )
}

/// `normal_cdf(x DOUBLE) -> DOUBLE`: the probability with which a standard normal variable is at most
/// `x`. `normal_cdf(-x)` is that it is above, with all digits also far out.
pub fn normal_cdf() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_MATH,
        "normal_cdf",
        "The probability with which a standard normal variable is at most x.",
        vec![number("x", "A number.")],
        DataType::Float64,
        |columns| map_one("normal_cdf", columns, |x| Ok(below(x))),
    )
}

/// `student_t_quantile(p DOUBLE, df DOUBLE) -> DOUBLE`: the number below which a variable of Student's
/// t distribution with `df` degrees of freedom is with probability `p`; infinite for 0 and 1, and
/// beyond `1e150`. An error for what is no probability and for `df` that is not positive.
pub fn student_t_quantile() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_MATH,
        "student_t_quantile",
        "The number below which a variable of Student's t distribution is with probability p.",
        vec![probability(), freedom()],
        DataType::Float64,
        |columns| map_two("student_t_quantile", columns, t_quantile),
    )
}

/// `chi_squared_sf(x DOUBLE, df DOUBLE) -> DOUBLE`: the probability with which a variable of the
/// chi-squared distribution with `df` degrees of freedom is above `x`: the p-value of the asymptotic
/// McNemar test with `x = (b - c)^2 / (b + c)` and `df = 1`. An error for `df` that is not positive.
pub fn chi_squared_sf() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_MATH,
        "chi_squared_sf",
        "The probability with which a variable of the chi-squared distribution is above x.",
        vec![number("x", "A number."), freedom()],
        DataType::Float64,
        |columns| map_two("chi_squared_sf", columns, chi_squared_above),
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
    match (0.0..=1.0).contains(&p) {
        true => Ok(p),
        false => exec_err!("{function}: {p} is no probability; give 0 to 1"),
    }
}

/// The probability with which a standard normal variable is above `x >= 0`: the error function of
/// the library has ten digits only, its incomplete gamma function all of them.
fn above(x: f64) -> f64 {
    0.5 * gamma_above(0.5, 0.5 * x * x)
}

/// The regularized upper incomplete gamma function.
fn gamma_above(shape: f64, x: f64) -> f64 {
    if x == 0.0 || x == f64::INFINITY {
        return f64::from(u8::from(x == 0.0));
    }
    checked_gamma_ur(shape, x).unwrap_or(f64::NAN)
}

fn below(x: f64) -> f64 {
    match x < 0.0 {
        true => above(-x),
        false => 1.0 - above(x),
    }
}

/// The quantile of the standard normal distribution at a probability.
pub(super) fn quantile(p: f64) -> f64 {
    let start = -std::f64::consts::SQRT_2 * erfc_inv(2.0 * p);
    if !start.is_finite() || start == 0.0 {
        return start;
    }
    // The library's inverse has ten digits or so: a step of Newton's method gives the rest, on the
    // smaller tail, which has more digits than the larger.
    let (tail, away) = (p.min(1.0 - p), start.abs());
    let density = (-0.5 * away * away).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let step = match density > 0.0 {
        true => (above(away) - tail) / density,
        false => 0.0,
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
        return Ok(match tail == 0.5 {
            true => 0.0,
            false => f64::INFINITY.copysign(p - 0.5),
        });
    }
    let away = match df > MANY {
        true => expanded_t(quantile(tail).abs(), df),
        false => upper_t(df, tail),
    };
    Ok(away.copysign(p - 0.5))
}

/// Degrees of freedom from which on the expansion has more digits than the library's beta function.
const MANY: f64 = 2_000.0;

/// From the normal quantile, by the expansion in `1 / df` (M. Abramowitz and I. A. Stegun, "Handbook
/// of Mathematical Functions", 26.7.5).
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

/// The square of what is larger may not be a double.
const LARGEST_T: f64 = 1e150;

/// The positive number above which the variable is with probability `tail < 1/2`, by bisection over
/// the doubles: the tail falls with it everywhere.
fn upper_t(df: f64, tail: f64) -> f64 {
    let beta = |a: f64, b: f64, x: f64| checked_beta_reg(a, b, x).unwrap_or(0.0);
    // Near the middle the tail has few digits of the distance, and the middle part has all.
    let is_above = |t: f64| match tail < 0.25 {
        true => beta(0.5 * df, 0.5, df / (df + t * t)) > 2.0 * tail,
        false => beta(0.5, 0.5 * df, t * t / (df + t * t)) < 1.0 - 2.0 * tail,
    };
    let (mut low, mut high) = (1e-150f64, LARGEST_T);
    // Positive doubles are ordered as their bits, so that 64 steps reach two neighbours.
    loop {
        let middle = f64::from_bits(low.to_bits() + (high.to_bits() - low.to_bits()) / 2);
        if middle <= low || middle >= high {
            return match high < LARGEST_T {
                true => middle,
                false => f64::INFINITY,
            };
        }
        match is_above(middle) {
            true => low = middle,
            false => high = middle,
        }
    }
}

fn chi_squared_above(x: f64, df: f64) -> Result<f64> {
    let df = checked_freedom("chi_squared_sf", df)?;
    Ok(gamma_above(0.5 * df, 0.5 * x.max(0.0)))
}

/// Fewer degrees of freedom than this are no degrees of freedom.
const LEAST: f64 = 1e-9;

fn checked_freedom(function: &str, df: f64) -> Result<f64> {
    match df >= LEAST && df.is_finite() {
        true => Ok(df),
        false => exec_err!("{function}: {df} degrees of freedom; give a positive number"),
    }
}

fn map_one(
    function: &str,
    columns: &[ArrayRef],
    of: impl Fn(f64) -> Result<f64>,
) -> Result<ArrayRef> {
    let [column] = columns else {
        return exec_err!("{function}: {} columns instead of 1", columns.len());
    };
    let values = column.as_primitive::<Float64Type>().iter();
    let values: Float64Array = values
        .map(|value| value.map(&of).transpose())
        .collect::<Result<_>>()?;
    Ok(Arc::new(values))
}

fn map_two(
    function: &str,
    columns: &[ArrayRef],
    of: impl Fn(f64, f64) -> Result<f64>,
) -> Result<ArrayRef> {
    let [first, second] = columns else {
        return exec_err!("{function}: {} columns instead of 2", columns.len());
    };
    let rows = first
        .as_primitive::<Float64Type>()
        .iter()
        .zip(second.as_primitive::<Float64Type>());
    let values = rows.map(|row| match row {
        (Some(first), Some(second)) => of(first, second).map(Some),
        _ => Ok(None),
    });
    let values: Float64Array = values.collect::<Result<_>>()?;
    Ok(Arc::new(values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_invert_probabilities() {
        for p in [1e-250, 1e-12, 0.01, 0.3, 0.5, 0.77, 0.999] {
            let back = below(quantile(p));
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
        assert_eq!(below(f64::NEG_INFINITY), 0.0);
        assert_eq!(below(0.0), 0.5);
        assert!(below(f64::NAN).is_nan());
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
}
