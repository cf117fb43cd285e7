//! [`Moments`]: count, sum, mean and standard deviation of numbers that come one by one.

use super::compensated::Compensated;
use super::double_double::{DoubleDouble, two_product, two_sum};

/// The sum, and the sums of deviations `d = x - x_1` and of their squares, each with its rounding
/// errors. The sample variance is `(sum d^2 - (sum d)^2 / n) / (n - 1)`.
///
/// Because `x_1` is one of the numbers, `sum d^2` is at most `n + 1` times what remains after the
/// subtraction, so that with twice the digits of a double nothing is lost, as with two passes; and
/// numbers that are all equal have a deviation of exactly zero.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Moments {
    count: u64,
    sum: Compensated,
    first: f64,
    deviations: Compensated,
    squares: Compensated,
}

/// Numbers that hold the state of a [`Moments`].
pub(super) const STATE: usize = 8;

impl Moments {
    pub(super) fn add(&mut self, value: f64) {
        if self.count == 0 {
            self.first = value;
        }
        self.count += 1;
        self.sum.add(value);
        let deviation = value - self.first;
        self.deviations.add(deviation);
        let (square, error) = two_product(deviation, deviation);
        self.squares.add(square);
        self.squares.errors += error;
    }

    /// Adds what another one has seen.
    pub(super) fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        if self.count == 0 {
            *self = *other;
            return;
        }
        let (shift, error) = two_sum(other.first, -self.first);
        let shift = DoubleDouble::new(shift, error);
        let moved = shift.times_double(other.count as f64);
        let deviations = other.deviations.exact();
        let twice = shift.times(deviations).times_double(2.0);
        let squares = other.squares.exact().plus(twice).plus(shift.times(moved));
        let deviations = deviations.plus(moved);
        self.count += other.count;
        self.sum.merge(other.sum);
        self.deviations.merge(Compensated {
            sum: deviations.high,
            errors: deviations.low,
        });
        self.squares.merge(Compensated {
            sum: squares.high,
            errors: squares.low,
        });
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// The sum as Python gives it; nothing where no number was.
    pub(super) fn sum(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum.total())
    }

    /// The sum divided by the count; nothing where no number was.
    pub(super) fn mean(&self) -> Option<f64> {
        self.sum().map(|sum| sum / self.count as f64)
    }

    /// The sample standard deviation (ddof 1); nothing for fewer than two numbers. Infinite where
    /// the squares exceed a double, NaN where a number is not finite.
    pub(super) fn std(&self) -> Option<f64> {
        if self.count < 2 {
            return None;
        }
        if !self.squares.total().is_finite() {
            return Some(match self.sum.total().is_finite() {
                true => f64::INFINITY,
                false => f64::NAN,
            });
        }
        let deviations = self.deviations.exact();
        let mean_part = deviations.times(deviations).divided_by(self.count as f64);
        let squares = self.squares.exact().minus(mean_part).high.max(0.0);
        Some((squares / (self.count - 1) as f64).sqrt())
    }

    pub(super) fn state(&self) -> [f64; STATE] {
        [
            self.count as f64,
            self.sum.sum,
            self.sum.errors,
            self.first,
            self.deviations.sum,
            self.deviations.errors,
            self.squares.sum,
            self.squares.errors,
        ]
    }

    pub(super) fn from_state(state: &[f64; STATE]) -> Self {
        let [
            count,
            sum,
            sum_errors,
            first,
            deviations,
            deviation_errors,
            squares,
            square_errors,
        ] = *state;
        Self {
            count: count as u64,
            sum: Compensated {
                sum,
                errors: sum_errors,
            },
            first,
            deviations: Compensated {
                sum: deviations,
                errors: deviation_errors,
            },
            squares: Compensated {
                sum: squares,
                errors: square_errors,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[f64]) -> Moments {
        let mut moments = Moments::default();
        values.iter().for_each(|&value| moments.add(value));
        moments
    }

    /// Two passes, each term in twice the digits.
    fn two_pass(values: &[f64]) -> f64 {
        let count = values.len() as f64;
        let mut sum = DoubleDouble::default();
        for &value in values {
            sum = sum.plus(value.into());
        }
        let mean = sum.divided_by(count);
        let mut squares = DoubleDouble::default();
        for &value in values {
            let deviation = DoubleDouble::from(value).minus(mean);
            squares = squares.plus(deviation.times(deviation));
        }
        (squares.high / (count - 1.0)).sqrt()
    }

    proptest! {
        #[test]
        fn std_is_that_of_two_passes(
            values in prop::collection::vec(prop_oneof![0.0..1.0, Just(1e6), 1e5..1e6, Just(0.3), Just(0.1 + 0.2)], 2..200),
            cut in 0usize..200,
        ) {
            let expected = two_pass(&values);
            let std = of(&values).std().unwrap();
            prop_assert!((std - expected).abs() <= 1e-14 * expected, "{std} {expected}");
            let (front, back) = values.split_at(cut.min(values.len()));
            let mut merged = of(front);
            merged.merge(&Moments::from_state(&of(back).state()));
            let std = merged.std().unwrap();
            prop_assert!((std - expected).abs() <= 1e-14 * expected, "{std} {expected}");
            prop_assert_eq!(merged.count(), values.len() as u64);
            prop_assert_eq!(merged.mean(), of(&values).mean());
        }
    }

    #[test]
    fn equal_numbers_do_not_spread() {
        assert_eq!(of(&[0.1; 1000]).std(), Some(0.0));
        let mut merged = of(&[0.1; 7]);
        merged.merge(&of(&[0.1; 9]));
        assert_eq!(merged.std(), Some(0.0));
    }

    #[test]
    fn a_first_number_far_away_costs_no_digits() {
        let mut values = vec![0.7; 100_000];
        values[0] = 0.1;
        let expected = two_pass(&values);
        let std = of(&values).std().unwrap();
        assert!(
            (std - expected).abs() < 1e-13 * expected,
            "{std} {expected}"
        );
    }

    #[test]
    fn ends_of_the_range() {
        assert_eq!(of(&[]).sum(), None);
        assert_eq!(of(&[2.0]).std(), None);
        assert_eq!(of(&[1e300, -1e300]).std(), Some(f64::INFINITY));
        assert_eq!(of(&[1.7e308, -1.7e308]).std(), Some(f64::INFINITY));
        assert!(of(&[f64::INFINITY, 1.0]).std().unwrap().is_nan());
    }
}
