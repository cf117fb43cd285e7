//! [`DoubleDouble`]: arithmetic with twice the precision of a double, and [`AllAmong`], the quotient of binomials behind
//! pass@k and pass^k.
//!
//! A [`DoubleDouble`] is an unevaluated sum of two doubles; each operation computes its own rounding error and keeps it
//! (T. J. Dekker, "A floating-point technique for extending the available precision", Numerische Mathematik 18, 1971;
//! D. E. Knuth, TAOCP 2, 4.2.2). The relative error of an operation is below `2^-103`.

use crate::python::{Compensated, two_sum};

/// `high + low`, with `low` at most half a unit in the last place of `high`, so that `high` is the
/// number rounded to a double.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(in crate::measure) struct DoubleDouble {
    pub(in crate::measure) high: f64,
    pub(in crate::measure) low: f64,
}

/// Returns the rounded product and its rounding error.
pub(super) fn two_product(a: f64, b: f64) -> (f64, f64) {
    let product = a * b;
    (product, a.mul_add(b, -product))
}

impl From<Compensated> for DoubleDouble {
    fn from(sum: Compensated) -> Self {
        Self::new(sum.sum, sum.errors)
    }
}

impl DoubleDouble {
    /// Returns `high + low`, where `low` is smaller than `high` by an unknown amount.
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
    /// Returns the square root, rounded to a double.
    pub(in crate::measure) fn sqrt(self) -> f64 {
        let root = self.high.sqrt();
        if root > 0.0 {
            let (square, error) = two_product(root, root);
            let rest = self.minus(Self::new(square, error));
            root + rest.high / (2.0 * root)
        } else {
            root
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

/// Returns `value * 2^exponent`, rounded once unless the result is subnormal.
pub(super) fn times_power_of_two(mut value: f64, exponent: i64) -> f64 {
    let mut rest = exponent.clamp(-4000, 4000);
    while rest != 0 {
        let step = rest.clamp(-1000, 1000);
        value *= 2f64.powi(i32::try_from(step).unwrap_or_default());
        rest -= step;
    }
    value
}

/// The probability that `k` items drawn without replacement out of `n` are all among `m` of them,
/// `C(m, k) / C(n, k)`, for `k` = 1, 2, ..., `n`.
///
/// Each quotient is the previous one times `(m - k + 1) / (n - k + 1)`, in twice the digits of a double.
/// After 10,000 steps the relative error is below `2^-88`: only a quotient that lies within `2^-35` units
/// in the last place of the midpoint of two doubles can round to the wrong one. Small quotients carry a
/// separate power of two, so that they do not underflow before they are rounded.
#[derive(Debug, Clone)]
pub(super) struct AllAmong {
    n: u64,
    m: u64,
    drawn: u64,
    product: DoubleDouble,
    /// The probability is `product * 2^-exponent`.
    exponent: u32,
}

/// The power of two that moves from the product to the exponent at a time.
const STEP: u32 = 500;
/// The product below which it moves.
const SMALL: f64 = f64::from_bits((1023 - STEP as u64) << 52);
const LARGE: f64 = f64::from_bits((1023 + STEP as u64) << 52);
/// Above this exponent a probability is less than half the smallest double.
const NOTHING: u32 = 2 * 1075;

impl AllAmong {
    /// `n` and `m <= n` are at most `2^53`.
    pub(super) fn new(n: u64, m: u64) -> Self {
        Self {
            n,
            m,
            drawn: 0,
            product: DoubleDouble::from(1.0),
            exponent: 0,
        }
    }

    fn rounded(&self) -> f64 {
        let DoubleDouble { high, low } = self.product;
        let scaled = high * 2f64.powi(-i32::try_from(self.exponent.min(1000)).unwrap_or_default());
        let scaled = match self.exponent {
            0..=1000 => scaled,
            _ => scaled * SMALL,
        };
        if scaled >= f64::MIN_POSITIVE || high == 0.0 {
            return scaled;
        }
        // A subnormal number has fewer digits: `high` is rounded again, and `low` breaks a tie.
        let power = (high.to_bits() >> 52) as u32;
        let digits = high.to_bits() & ((1 << 52) - 1) | 1 << 52;
        // `high` is `digits * 2^(power - 1075)` and the last place of the result `2^-1074`.
        let dropped = (1 + self.exponent).saturating_sub(power);
        if !(1..=54).contains(&dropped) {
            return if dropped == 0 { scaled } else { 0.0 };
        }
        let (kept, rest, half) = (
            digits >> dropped,
            digits & ((1 << dropped) - 1),
            1 << (dropped - 1),
        );
        let middle = rest == half;
        let up = rest > half || middle && (low > 0.0 || low == 0.0 && kept & 1 == 1);
        f64::from_bits(kept + u64::from(up))
    }
}

impl Iterator for AllAmong {
    type Item = f64;

    fn next(&mut self) -> Option<f64> {
        if self.drawn >= self.n {
            return None;
        }
        let left = self.m.saturating_sub(self.drawn);
        let ratio = self.product.times_double(left as f64);
        self.product = ratio.divided_by((self.n - self.drawn) as f64);
        self.drawn += 1;
        if self.product.high < SMALL && self.exponent <= NOTHING {
            self.product = DoubleDouble {
                high: self.product.high * LARGE,
                low: self.product.low * LARGE,
            };
            self.exponent += STEP;
        }
        Some(match self.exponent {
            0..=NOTHING => self.rounded(),
            _ => 0.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use num_bigint::BigUint;
    use proptest::prelude::*;

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

    /// The double next to `numerator / denominator`, the even one of two, for a quotient up to 1.
    fn rounded(numerator: &BigUint, denominator: &BigUint) -> f64 {
        if numerator.bits() == 0 {
            return 0.0;
        }
        let below = denominator.bits() - numerator.bits();
        // The last place has the value 2^-places; 1074 places are the most that a double has.
        let mut places = (below + 53).min(1074);
        loop {
            let scaled = numerator << places;
            let (mut digits, rest) = (&scaled / denominator, &scaled % denominator);
            if digits.bits() > 53 {
                places -= 1;
                continue;
            }
            let twice = rest << 1u32;
            if twice > *denominator || twice == *denominator && digits.bit(0) {
                digits += 1u32;
            }
            let digits: u64 = digits.try_into().unwrap();
            let half = places / 2;
            let power = |places: u64| 2f64.powi(-i32::try_from(places).unwrap());
            return digits as f64 * power(half) * power(places - half);
        }
    }

    /// `C(m, k) / C(n, k)` for all k, as falling factorials.
    fn exact(n: u64, m: u64) -> impl Iterator<Item = f64> {
        let (mut numerator, mut denominator) = (BigUint::from(1u32), BigUint::from(1u32));
        (0..n).map(move |drawn| {
            numerator *= m.saturating_sub(drawn);
            denominator *= n - drawn;
            rounded(&numerator, &denominator)
        })
    }

    #[test]
    fn every_quotient_up_to_60_is_the_exact_one_rounded_once() {
        for n in 1..=60 {
            for m in 0..=n {
                let quotients: Vec<f64> = AllAmong::new(n, m).collect();
                assert_eq!(quotients, exact(n, m).collect::<Vec<f64>>(), "{n} {m}");
            }
        }
    }

    #[test]
    fn quotients_of_10000_are_the_exact_ones_rounded_once() {
        for m in [1, 9, 9_000, 9_990, 9_999, 10_000] {
            let checked = if m == 9_000 { 100 } else { 20 };
            let quotients: Vec<f64> = AllAmong::new(10_000, m).take(checked).collect();
            let exact: Vec<f64> = exact(10_000, m).take(checked).collect();
            assert_eq!(quotients, exact, "{m}");
        }
    }

    #[test]
    fn quotients_down_to_the_smallest_double_are_rounded_once() {
        for (n, m) in [(10_000, 3_000), (2_000, 1_000)] {
            let exact: Vec<f64> = exact(n, m).take(900).collect();
            let quotients: Vec<f64> = AllAmong::new(n, m).take(900).collect();
            assert_eq!(quotients, exact, "{n} {m}");
            let subnormal = |value: &f64| *value > 0.0 && *value < f64::MIN_POSITIVE;
            assert!(exact.iter().any(subnormal), "{n} {m}");
        }
    }

    proptest! {
        #[test]
        fn more_items_are_less_likely((n, m) in (1u64..400).prop_flat_map(|n| (Just(n), 0..=n))) {
            let all: Vec<f64> = AllAmong::new(n, m).collect();
            prop_assert_eq!(all.len() as u64, n);
            prop_assert!(all.windows(2).all(|pair| pair[1] <= pair[0]));
        }
    }
}
