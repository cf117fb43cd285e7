//! [`AllAmong`]: the quotient of binomials behind pass@k and pass^k.

use super::double_double::DoubleDouble;

/// The probability that `k` items drawn without replacement out of `n` are all among `m` of them,
/// `C(m, k) / C(n, k)`, for `k` = 1, 2, ..., `n`.
///
/// Each is the one before times `(m - k + 1) / (n - k + 1)`, in twice the digits of a double: after
/// 10,000 steps the relative error is below `2^-88`, so that a quotient is rounded to another double
/// than the exact one only if it lies within `2^-35` units in the last place of the middle of two
/// doubles. Small ones carry a power of two of their own and do not underflow before they are
/// rounded.
#[derive(Debug, Clone)]
pub(super) struct AllAmong {
    n: u64,
    m: u64,
    drawn: u64,
    product: DoubleDouble,
    /// The probability is `product * 2^-exponent`.
    exponent: u32,
}

/// Powers of two that are moved from the product to the exponent at a time.
const STEP: u32 = 500;
/// The product below which they are.
const SMALL: f64 = f64::from_bits((1023 - STEP as u64) << 52);
const LARGE: f64 = f64::from_bits((1023 + STEP as u64) << 52);
/// The exponent from which on a probability is less than half the smallest double.
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

    /// The probability for one `k` from 1 to `n`.
    pub(super) fn of(mut self, k: u64) -> f64 {
        let mut probability = 1.0;
        while self.drawn < k && probability > 0.0 {
            probability = self.next().unwrap_or_default();
        }
        probability
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
        // A subnormal number has fewer digits, so that `high` is rounded again, and `low` decides
        // where it lies in the middle.
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
        fn one_k_is_the_same_as_all((n, m, k) in (1u64..400).prop_flat_map(|n| (Just(n), 0..=n, 1..=n))) {
            let all: Vec<f64> = AllAmong::new(n, m).collect();
            prop_assert_eq!(all.len() as u64, n);
            prop_assert_eq!(AllAmong::new(n, m).of(k), all[k as usize - 1]);
            prop_assert!(all.windows(2).all(|pair| pair[1] <= pair[0]));
        }
    }
}
