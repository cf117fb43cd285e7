//! [`DoubleDouble`]: arithmetic with twice the precision of a double.
//!
//! A number is an unevaluated sum of two doubles; each operation finds its own rounding error and
//! keeps it (T. J. Dekker, "A floating-point technique for extending the available precision",
//! Numerische Mathematik 18, 1971; D. E. Knuth, TAOCP 2, 4.2.2). The relative error of an operation
//! is below `2^-103`.

/// `high + low`, with `low` at most half a unit in the last place of `high`, so that `high` is the
/// number rounded to a double.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(in crate::measure) struct DoubleDouble {
    pub(in crate::measure) high: f64,
    pub(in crate::measure) low: f64,
}

/// The rounded sum and its rounding error.
pub(super) fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let from_b = sum - a;
    (sum, (a - (sum - from_b)) + (b - from_b))
}

/// The rounded product and its rounding error.
pub(super) fn two_product(a: f64, b: f64) -> (f64, f64) {
    let product = a * b;
    (product, a.mul_add(b, -product))
}

impl DoubleDouble {
    /// `high + low` for a `low` that is smaller than `high`, but not by how much.
    pub(super) fn new(high: f64, low: f64) -> Self {
        let (high, low) = two_sum(high, low);
        Self { high, low }
    }

    pub(in crate::measure) fn plus(self, other: Self) -> Self {
        let (sum, error) = two_sum(self.high, other.high);
        let (low, low_error) = two_sum(self.low, other.low);
        let first = Self::new(sum, error + low);
        Self::new(first.high, first.low + low_error)
    }

    pub(in crate::measure) fn minus(self, other: Self) -> Self {
        self.plus(Self {
            high: -other.high,
            low: -other.low,
        })
    }

    pub(in crate::measure) fn times(self, other: Self) -> Self {
        let (product, error) = two_product(self.high, other.high);
        Self::new(
            product,
            error + (self.high * other.low + self.low * other.high),
        )
    }

    pub(super) fn times_double(self, factor: f64) -> Self {
        let (product, error) = two_product(self.high, factor);
        Self::new(product, error + self.low * factor)
    }

    pub(in crate::measure) fn divided_by(self, divisor: f64) -> Self {
        let quotient = self.high / divisor;
        let remainder = (-quotient).mul_add(divisor, self.high) + self.low;
        Self::new(quotient, remainder / divisor)
    }
}

impl DoubleDouble {
    /// The square root, rounded to a double.
    pub(in crate::measure) fn sqrt(self) -> f64 {
        let root = self.high.sqrt();
        match root > 0.0 {
            true => {
                let (square, error) = two_product(root, root);
                let rest = self.minus(Self::new(square, error));
                root + rest.high / (2.0 * root)
            }
            false => root,
        }
    }
}

impl From<f64> for DoubleDouble {
    fn from(value: f64) -> Self {
        Self {
            high: value,
            low: 0.0,
        }
    }
}

/// `value * 2^exponent`, rounded once unless the result is subnormal.
pub(super) fn times_power_of_two(mut value: f64, exponent: i64) -> f64 {
    let mut rest = exponent.clamp(-4000, 4000);
    while rest != 0 {
        let step = rest.clamp(-1000, 1000);
        value *= 2f64.powi(i32::try_from(step).unwrap_or_default());
        rest -= step;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_operations_are_kept() {
        let tenth = DoubleDouble::from(1.0).divided_by(10.0);
        assert_eq!(tenth.high, 0.1);
        let one = tenth.times_double(10.0);
        assert_eq!(one.high, 1.0);
        assert!(one.low.abs() < 1e-31);
        let large = DoubleDouble::new(1e16, 0.0).plus(tenth);
        let back = large.minus(DoubleDouble::from(1e16));
        assert!((back.high - 0.1).abs() < 1e-16);
        let square = tenth.times(tenth);
        assert!(
            square
                .minus(DoubleDouble::from(1.0).divided_by(100.0))
                .high
                .abs()
                < 1e-33
        );
    }

    #[test]
    fn powers_of_two_reach_beyond_the_range_of_one_factor() {
        assert_eq!(times_power_of_two(1.5, -1074), 1e-323);
        assert_eq!(times_power_of_two(2f64.powi(-1000), 2000), 2f64.powi(1000));
        assert_eq!(times_power_of_two(1.0, 9999), f64::INFINITY);
    }
}
