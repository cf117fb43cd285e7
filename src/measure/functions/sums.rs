//! Sums whose rounding is fixed: [`pairwise_sum`] rounds as NumPy, and [`ExactSum`] (the aggregate function `exact_sum`)
//! once.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array};
use arrow::datatypes::{DataType, Float64Type};
use datafusion::common::Result;
use datafusion::logical_expr::AggregateUDF;

use super::aggregate::{Aggregate, AggregateFunction, Groups, save_numbers, saved, saved_numbers};
use super::scalar::{column, number};

/// The longest part that is not halved.
const PART: usize = 128;
/// The number of accumulators of a part.
const LANES: usize = 8;

/// Returns the sum of `len` terms, added by halves down to parts of at most 128 terms, as NumPy adds them.
///
/// Rounding errors grow with the logarithm of the length, and the length alone decides which terms are added to which:
///
/// ```text
///                 [0, 1000)
///            ┌────────┴────────┐
///        [0, 496)         [496, 1000)
///       ┌────┴────┐       ┌────┴────┐
///   [0, 248) [248, 496) ...        ...      down to 128 terms
/// ```
pub(in crate::measure) fn pairwise_sum(len: usize, term: impl Fn(usize) -> f64) -> f64 {
    0.0 + sum(0, len, &term)
}

fn sum(start: usize, len: usize, term: &impl Fn(usize) -> f64) -> f64 {
    if len <= PART {
        return part(start, len, term);
    }
    let half = len / 2;
    let half = half - half % LANES;
    sum(start, half, term) + sum(start + half, len - half, term)
}

/// Adds in eight accumulators, combines them as a tree, then adds the rest one by one.
fn part(start: usize, len: usize, term: &impl Fn(usize) -> f64) -> f64 {
    let (mut total, mut next) = (0.0, 0);
    if len >= LANES {
        let mut lanes: [f64; LANES] = std::array::from_fn(|lane| term(start + lane));
        next = LANES;
        while next + LANES <= len {
            for (lane, total) in lanes.iter_mut().enumerate() {
                *total += term(start + next + lane);
            }
            next += LANES;
        }
        let [a, b, c, d, e, f, g, h] = lanes;
        total = ((a + b) + (c + d)) + ((e + f) + (g + h));
    }
    (next..len).fold(total, |total, at| total + term(start + at))
}

/// Value bits of a limb; the rest of its 64 bits is room for carries.
const LIMB: u32 = 32;
/// The number of additions that a limb has room for.
const ADDITIONS: u32 = 1 << 30;
const MASK: i64 = (1 << LIMB) - 1;

/// The exact sum of doubles, as a fixed-point number as long as its terms need (U. Kulisch,
/// "Very fast and exact accumulation of products", Computing 91, 2011): limb `i` counts units of
/// `2^(32 (low + i) - 1074)`.
///
/// The order of the terms and their split into parts do not change it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ExactSum {
    limbs: Vec<i64>,
    low: usize,
    /// The number of additions since the last carry.
    additions: u32,
    /// The sum of the terms that are not finite; zero without them.
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
        let limbs = if value < 0.0 {
            limbs.map(|limb| -limb)
        } else {
            limbs
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

    /// Carries, until every limb but the highest fits into 32 bits; the highest has the sign.
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

    /// Returns the sum, rounded to the nearest double, ties to even. Infinite and NaN terms count as in an
    /// addition; a sum of zeros is positive.
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
        if negative { -magnitude } else { magnitude }
    }

    /// Returns the nearest double; all limbs fit into 32 bits, and the highest is positive.
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

    /// Returns at least 53 binary digits from a place up.
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

    /// Returns the special sum, the place of the lowest limb, and the limbs.
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

/// `exact_sum(value DOUBLE) -> DOUBLE`: the exact sum, rounded once, like `math.fsum` of Python without its
/// overflow. The order and the partitions of the rows do not change any bit. Infinite and NaN values count as
/// in an addition. Nulls are left out; null if there is no number.
pub fn exact_sum() -> AggregateUDF {
    AggregateFunction {
        name: "exact_sum",
        about: "The exact sum, rounded once: the same for any order of the rows.",
        arguments: vec![number("value", "A number; nulls are ignored.")],
        returns: DataType::Float64,
        state: saved(),
        in_order: false,
        groups: |_| Ok(Groups::of(Sum)),
    }
    .udaf()
}

#[derive(Debug, Clone, Copy)]
struct Sum;

impl Aggregate for Sum {
    type Group = Option<ExactSum>;
    type Rows<'a> = &'a Float64Array;

    fn rows<'a>(&self, columns: &'a [ArrayRef]) -> Result<Self::Rows<'a>> {
        Ok(column(columns, 0)?.as_primitive::<Float64Type>())
    }

    fn update(&self, group: &mut Self::Group, rows: &Self::Rows<'_>, row: usize) -> Result<()> {
        if rows.is_valid(row) {
            group.get_or_insert_default().add(rows.value(row));
        }
        Ok(())
    }

    fn save(group: &Self::Group, saved: &mut Vec<u8>) {
        if let Some(sum) = group {
            // Each limb fits into 32 bits and a sign, and so into a double.
            let (special, low, limbs) = sum.clone().parts();
            let limbs = limbs.into_iter().map(|limb| limb as f64);
            save_numbers([special, low as f64].into_iter().chain(limbs), saved);
        }
    }

    fn merge(group: &mut Self::Group, saved: &[u8]) {
        let mut saved = saved_numbers(saved);
        if let (Some(special), Some(low)) = (saved.next(), saved.next()) {
            let limbs = saved.map(|limb| limb as i64).collect();
            let sum = ExactSum::from_parts(special, low as usize, limbs);
            group.get_or_insert_default().merge(sum);
        }
    }

    fn evaluate(&self, groups: Vec<Self::Group>) -> Result<ArrayRef> {
        let totals = groups
            .iter()
            .map(|group| group.as_ref().map(ExactSum::total));
        Ok(Arc::new(totals.collect::<Float64Array>()))
    }

    fn heap_size(group: &Self::Group) -> usize {
        group.as_ref().map_or(0, ExactSum::heap_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use num_bigint::BigInt;
    use num_rational::BigRational;
    use proptest::prelude::*;

    /// The definition, read off its recursive form.
    fn defined(terms: &[f64]) -> f64 {
        let len = terms.len();
        if len > 128 {
            let half = len / 2 - (len / 2) % 8;
            let (low, high) = terms.split_at(half);
            return defined(low) + defined(high);
        }
        let blocks = if len < 8 { 0 } else { len / 8 * 8 };
        let lane = |lane: usize| {
            let column = terms[..blocks].iter().skip(lane).step_by(8);
            column.copied().reduce(|sum, term| sum + term).unwrap()
        };
        let pair = |first: usize| lane(first) + lane(first + 1);
        let sum = match blocks {
            0 => 0.0,
            _ => (pair(0) + pair(2)) + (pair(4) + pair(6)),
        };
        terms[blocks..].iter().fold(sum, |sum, term| sum + term)
    }

    #[test]
    fn ten_tenths_are_one() {
        assert_eq!(pairwise_sum(10, |_| 0.1), 1.0);
        assert_eq!(pairwise_sum(0, |_| 0.1), 0.0);
    }

    proptest! {
        #[test]
        fn it_is_what_is_defined(terms in prop::collection::vec(-1e3..1e3, 0..1000)) {
            prop_assert_eq!(pairwise_sum(terms.len(), |at| terms[at]), 0.0 + defined(&terms));
        }
    }

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
