//! [`ExactSum`]: a sum that is rounded once.

/// Bits of a limb that belong to it; the rest of its 64 is room for carries.
const LIMB: u32 = 32;
/// Additions that a limb has room for.
const ADDITIONS: u32 = 1 << 30;
const MASK: i64 = (1 << LIMB) - 1;

/// The exact sum of doubles, as a fixed-point number that is as long as the terms need (U. Kulisch,
/// "Very fast and exact accumulation of products", Computing 91, 2011): limb `i` counts units of
/// `2^(32 (low + i) - 1074)`.
///
/// Neither the order of the terms nor how they are split over parts makes a difference.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ExactSum {
    limbs: Vec<i64>,
    low: usize,
    /// Additions since carries were passed on.
    additions: u32,
    /// The sum of the terms that are not finite: infinite or NaN, and zero without them.
    special: f64,
}

impl ExactSum {
    pub(super) fn add(&mut self, value: f64) {
        if !value.is_finite() {
            self.special += value;
            return;
        }
        let bits = value.to_bits();
        let (power, digits) = match ((bits >> 52) & 0x7ff, bits & ((1 << 52) - 1)) {
            (0, digits) => (0, digits),
            (power, digits) => (power as usize - 1, digits | 1 << 52),
        };
        if digits == 0 {
            return;
        }
        let digits = u128::from(digits) << (power % LIMB as usize);
        let limbs = [0, 1, 2].map(|limb| (digits >> (limb * LIMB)) as i64 & MASK);
        let limbs = match value < 0.0 {
            true => limbs.map(|limb| -limb),
            false => limbs,
        };
        self.add_limbs(power / LIMB as usize, &limbs);
    }

    /// Adds another sum.
    pub(super) fn merge(&mut self, mut other: Self) {
        self.special += other.special;
        other.carry();
        self.add_limbs(other.low, &other.limbs);
    }

    fn add_limbs(&mut self, low: usize, limbs: &[i64]) {
        if self.limbs.is_empty() {
            self.low = low;
        } else if low < self.low {
            let more = self.low - low;
            self.limbs.splice(0..0, std::iter::repeat_n(0, more));
            self.low = low;
        }
        let start = low - self.low;
        if self.limbs.len() < start + limbs.len() {
            self.limbs.resize(start + limbs.len(), 0);
        }
        for (sum, limb) in self.limbs.iter_mut().skip(start).zip(limbs) {
            *sum += limb;
        }
        self.additions += 1;
        if self.additions >= ADDITIONS {
            self.carry();
        }
    }

    /// Brings every limb but the highest into its 32 bits; the highest has the sign.
    fn carry(&mut self) {
        let mut carry = 0;
        let highest = self.limbs.len().saturating_sub(1);
        for (place, limb) in self.limbs.iter_mut().enumerate() {
            *limb += carry;
            if place < highest {
                carry = *limb >> LIMB;
                *limb &= MASK;
            }
        }
        if let Some(limb) = self.limbs.last_mut()
            && limb.unsigned_abs() > MASK.unsigned_abs()
        {
            let carry = *limb >> LIMB;
            *limb &= MASK;
            self.limbs.push(carry);
        }
        self.additions = 1;
    }

    /// The sum, rounded to the nearest double, of two to the even one. Infinite and NaN terms count as
    /// in an addition; a sum of zeros is positive.
    pub(super) fn total(&self) -> f64 {
        if self.special != 0.0 {
            return self.special;
        }
        let mut sum = self.clone();
        sum.carry();
        while sum.limbs.last() == Some(&0) {
            sum.limbs.pop();
        }
        let negative = sum.limbs.last().is_some_and(|limb| *limb < 0);
        if negative {
            sum.limbs.iter_mut().for_each(|limb| *limb = -*limb);
            sum.carry();
            while sum.limbs.last() == Some(&0) {
                sum.limbs.pop();
            }
        }
        let magnitude = sum.magnitude();
        match negative {
            true => -magnitude,
            false => magnitude,
        }
    }

    /// The double next to limbs that are all in their 32 bits, the highest of them positive.
    fn magnitude(&self) -> f64 {
        let Some(highest) = self.limbs.last() else {
            return 0.0;
        };
        // Places count from 2^-1074, the last place of the smallest doubles.
        let whole = (self.low + self.limbs.len() - 1) * LIMB as usize;
        let length = whole + (u64::BITS - highest.leading_zeros()) as usize;
        let last = length.saturating_sub(53);
        let mut digits = self.bits_from(last) & ((1 << 53) - 1);
        if last > 0 {
            let half = self.bits_from(last - 1) & 1 == 1;
            if half && (digits & 1 == 1 || self.any_below(last - 1)) {
                digits += 1;
            }
        }
        // The first digit, at 2^52, adds the one that the exponent of normal numbers begins with.
        let bits = ((last as u64) << 52) + digits;
        f64::from_bits(bits.min(f64::INFINITY.to_bits()))
    }

    fn limb(&self, place: usize) -> u128 {
        let limb = place
            .checked_sub(self.low)
            .and_then(|place| self.limbs.get(place));
        limb.map_or(0, |limb| u128::from(limb.unsigned_abs()))
    }

    /// Digits from a place up, at least 53 of them.
    fn bits_from(&self, place: usize) -> u64 {
        let (limb, shift) = (place / LIMB as usize, place % LIMB as usize);
        let digits =
            self.limb(limb) | self.limb(limb + 1) << LIMB | self.limb(limb + 2) << (2 * LIMB);
        (digits >> shift) as u64
    }

    fn any_below(&self, place: usize) -> bool {
        let (limb, shift) = (place / LIMB as usize, place % LIMB as usize);
        let whole = limb.saturating_sub(self.low);
        self.limbs.iter().take(whole).any(|limb| *limb != 0)
            || self.limb(limb) & ((1 << shift) - 1) != 0
    }

    /// The special sum, the place of the lowest limb, and the limbs.
    pub(super) fn parts(mut self) -> (f64, usize, Vec<i64>) {
        self.carry();
        (self.special, self.low, self.limbs)
    }

    pub(super) fn from_parts(special: f64, low: usize, limbs: Vec<i64>) -> Self {
        Self {
            limbs,
            low,
            additions: 1,
            special,
        }
    }

    pub(super) fn heap_size(&self) -> usize {
        self.limbs.capacity() * size_of::<i64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use num_bigint::BigInt;
    use num_rational::BigRational;
    use proptest::prelude::*;

    fn sum(values: &[f64]) -> ExactSum {
        let mut sum = ExactSum::default();
        values.iter().for_each(|&value| sum.add(value));
        sum
    }

    /// The exact sum in units of 2^-1074, rounded by hand.
    fn exact(values: &[f64]) -> f64 {
        let unit = BigInt::from(2).pow(1074);
        let rational = |value: &f64| BigRational::from_float(*value).unwrap();
        let total: BigRational = values.iter().map(rational).sum();
        let units = (total * unit).to_integer();
        let magnitude = units.magnitude();
        let last = magnitude.bits().saturating_sub(53);
        let mut digits: u64 = (magnitude >> last).try_into().unwrap();
        let rest = magnitude - (magnitude.clone() >> last << last);
        let twice: BigInt = BigInt::from(rest) * 2;
        let whole = BigInt::from(2).pow(last as u32);
        if twice > whole || twice == whole && last > 0 && digits & 1 == 1 {
            digits += 1;
        }
        let bits = (last << 52)
            .saturating_add(digits)
            .min(f64::INFINITY.to_bits());
        f64::from_bits(bits).copysign(if units < BigInt::from(0) { -1.0 } else { 1.0 })
    }

    fn terms() -> impl Strategy<Value = Vec<f64>> {
        let finite = any::<f64>().prop_filter("finite", |value| value.is_finite());
        let term = prop_oneof![
            0.0..1.0,
            -1e3..1e3,
            finite,
            Just(1e16),
            Just(-1e16),
            Just(f64::MAX),
            Just(-f64::MAX),
            Just(5e-324),
            Just(f64::EPSILON / 2.0),
            Just(-1.0),
            Just(1.0),
        ];
        prop::collection::vec(term, 0..60)
    }

    proptest! {
        #[test]
        fn it_is_the_exact_sum_rounded_once(values in terms()) {
            prop_assert_eq!(sum(&values).total().to_bits(), exact(&values).to_bits());
        }

        #[test]
        fn neither_order_nor_parts_matter(
            (values, shuffled) in terms().prop_flat_map(|values| (Just(values.clone()), Just(values).prop_shuffle())),
            part in 1usize..20,
        ) {
            let mut merged = ExactSum::default();
            for part in shuffled.chunks(part) {
                let (special, low, limbs) = sum(part).parts();
                merged.merge(ExactSum::from_parts(special, low, limbs));
            }
            prop_assert_eq!(merged.total().to_bits(), sum(&values).total().to_bits());
        }
    }

    #[test]
    fn terms_that_are_not_finite_count_as_in_an_addition() {
        assert_eq!(sum(&[1.0, f64::INFINITY]).total(), f64::INFINITY);
        assert_eq!(sum(&[f64::NEG_INFINITY, 1.0]).total(), f64::NEG_INFINITY);
        assert!(sum(&[f64::INFINITY, f64::NEG_INFINITY]).total().is_nan());
        assert!(sum(&[f64::NAN, 1.0]).total().is_nan());
        assert_eq!(sum(&[f64::MAX, f64::MAX]).total(), f64::INFINITY);
        assert_eq!(sum(&[f64::MAX, f64::MAX, -f64::MAX]).total(), f64::MAX);
        assert_eq!(sum(&[-0.0]).total().to_bits(), 0);
    }

    #[test]
    fn carries_do_not_make_it_longer() {
        let mut sum = sum(&[-1.0, 0.5, -3e-9]);
        for _ in 0..100 {
            sum.carry();
        }
        assert!(sum.limbs.len() < 8);
        assert_eq!(sum.total(), -0.500_000_003);
    }
}
