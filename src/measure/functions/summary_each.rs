//! The aggregate function `summary_each`, and [`Moments`]: count, sum, mean and standard deviation of numbers that arrive
//! one by one.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, ListArray, NullBufferBuilder, StructArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Fields};
use datafusion::common::Result;
use datafusion::logical_expr::AggregateUDF;

use super::aggregate::{Aggregate, AggregateFunction, Groups, save_numbers, saved, saved_numbers};
use super::double_double::{DoubleDouble, two_product};
use super::lists::NumberLists;
use super::scalar::{column, list_of, numbers};
use crate::python::{Compensated, two_sum};

/// `summary_each(list DOUBLE[] [ORDER BY ...]) -> STRUCT(count BIGINT, sum DOUBLE, mean DOUBLE, std
/// DOUBLE)[]`: for each position, the summary of the elements at that position of the group's lists;
/// nulls and the missing tails of shorter lists are left out.
///
/// `sum` is what Python's `sum()` gives in the order of the rows (see `Compensated`), `mean` is `sum / count`, `std` the
/// sample standard deviation (ddof 1), null for a count below 2. All but the count are null for a count of 0. Null lists
/// are left out; null if there is no list.
pub fn summary_each() -> AggregateUDF {
    AggregateFunction {
        name: "summary_each",
        about: "Count, sum, mean and sample standard deviation of the elements of lists, position by position.",
        arguments: vec![numbers("list", "A list; null and missing elements are ignored.")],
        returns: list_of(DataType::Struct(fields())),
        state: saved(),
        in_order: true,
        groups: |_| Ok(Groups::of(Summaries)),
    }
    .udaf()
}

fn fields() -> Fields {
    Fields::from(vec![
        Field::new("count", DataType::Int64, true),
        Field::new("sum", DataType::Float64, true),
        Field::new("mean", DataType::Float64, true),
        Field::new("std", DataType::Float64, true),
    ])
}

#[derive(Debug, Clone, Copy)]
struct Summaries;

impl Aggregate for Summaries {
    type Group = Option<Vec<Moments>>;
    type Rows<'a> = NumberLists<'a>;

    fn rows<'a>(&self, columns: &'a [ArrayRef]) -> Result<Self::Rows<'a>> {
        NumberLists::of(column(columns, 0)?)
    }

    fn update(&self, group: &mut Self::Group, rows: &Self::Rows<'_>, row: usize) -> Result<()> {
        let Some(elements) = rows.row(row) else {
            return Ok(());
        };
        let group = group.get_or_insert_default();
        let length = elements.size_hint().0;
        if group.len() < length {
            group.resize(length, Moments::default());
        }
        for (moments, element) in group.iter_mut().zip(elements) {
            if let Some(element) = element {
                moments.add(element);
            }
        }
        Ok(())
    }

    fn save(group: &Self::Group, saved: &mut Vec<u8>) {
        // One more number tells no list from an empty one.
        save_numbers(group.iter().map(|_| 0.0), saved);
        save_numbers(group.iter().flatten().flat_map(Moments::state), saved);
    }

    fn merge(group: &mut Self::Group, saved: &[u8]) {
        let Some((_, states)) = saved.split_first_chunk::<{ size_of::<f64>() }>() else {
            return;
        };
        let group = group.get_or_insert_default();
        let states: Vec<f64> = saved_numbers(states).collect();
        let (states, _) = states.as_chunks();
        if group.len() < states.len() {
            group.resize(states.len(), Moments::default());
        }
        for (moments, state) in group.iter_mut().zip(states) {
            moments.merge(&Moments::from_state(state));
        }
    }

    fn evaluate(&self, groups: Vec<Self::Group>) -> Result<ArrayRef> {
        let elements = || groups.iter().flatten().flatten();
        let counts = elements().map(|moments| moments.count().cast_signed());
        let float = |of: fn(&Moments) -> Option<f64>| -> ArrayRef {
            Arc::new(elements().map(of).collect::<Float64Array>())
        };
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter_values(counts)),
            float(Moments::sum),
            float(Moments::mean),
            float(Moments::std),
        ];
        let structs = StructArray::try_new(fields(), columns, None)?;
        let mut valid = NullBufferBuilder::new(groups.len());
        groups
            .iter()
            .for_each(|group| valid.append(group.is_some()));
        let lengths = groups
            .iter()
            .map(|group| group.as_ref().map_or(0, Vec::len));
        let lists = ListArray::try_new(
            Arc::new(Field::new_list_field(DataType::Struct(fields()), true)),
            OffsetBuffer::from_lengths(lengths),
            Arc::new(structs),
            valid.finish(),
        )?;
        Ok(Arc::new(lists))
    }

    fn heap_size(group: &Self::Group) -> usize {
        let capacity = group.as_ref().map_or(0, Vec::capacity);
        capacity * size_of::<Moments>()
    }
}

/// The sum, and the sums of the deviations `d = x - x_1` and of their squares, each with its rounding error.
/// The sample variance is `(sum d^2 - (sum d)^2 / n) / (n - 1)`.
///
/// Since `x_1` is one of the numbers, `sum d^2` is at most `n + 1` times the difference: with twice the digits
/// of a double nothing is lost, as with two passes. Equal numbers have a deviation of exactly zero.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Moments {
    count: u64,
    sum: Compensated,
    first: f64,
    deviations: Compensated,
    squares: Compensated,
}

/// The length of the state of a [`Moments`].
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

    /// Adds the numbers that `other` has seen.
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
        let deviations = DoubleDouble::from(other.deviations);
        let twice = shift.times(deviations).times_double(2.0);
        let squares = DoubleDouble::from(other.squares)
            .plus(twice)
            .plus(shift.times(moved));
        let deviations = deviations.plus(moved);
        self.count += other.count;
        self.sum.merge(other.sum);
        let of = |sum: DoubleDouble| Compensated {
            sum: sum.high,
            errors: sum.low,
        };
        self.deviations.merge(of(deviations));
        self.squares.merge(of(squares));
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the sum as Python computes it; `None` without numbers.
    pub(super) fn sum(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum.total())
    }

    /// Returns the sum divided by the count; `None` without numbers.
    pub(super) fn mean(&self) -> Option<f64> {
        self.sum().map(|sum| sum / self.count as f64)
    }

    /// Returns the sample standard deviation (ddof 1); `None` for fewer than two numbers. Infinite where
    /// the squares exceed a double, NaN where a number is not finite.
    pub(super) fn std(&self) -> Option<f64> {
        if self.count < 2 {
            return None;
        }
        if !self.squares.total().is_finite() {
            return Some(if self.sum.total().is_finite() {
                f64::INFINITY
            } else {
                f64::NAN
            });
        }
        let deviations = DoubleDouble::from(self.deviations);
        let mean_part = deviations.times(deviations).divided_by(self.count as f64);
        let squares = DoubleDouble::from(self.squares)
            .minus(mean_part)
            .high
            .max(0.0);
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
        let [count, sum, sum_errors, first, rest @ ..] = *state;
        let [deviations, deviation_errors, squares, square_errors] = rest;
        let of = |sum, errors| Compensated { sum, errors };
        Self {
            count: count as u64,
            sum: of(sum, sum_errors),
            first,
            deviations: of(deviations, deviation_errors),
            squares: of(squares, square_errors),
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
