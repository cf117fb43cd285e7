//! The aggregate function `compensated_sum`.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array};
use arrow::datatypes::{DataType, Float64Type};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::AggregateUDF;

use super::aggregate::{Aggregate, Groups};
use super::aggregate_function::AggregateFunction;
use super::argument::number;
use super::compensated::Compensated;

/// `compensated_sum(value DOUBLE [ORDER BY ...]) -> DOUBLE`: the sum that `sum()` of Python 3.12 and
/// later gives for the numbers in this order (A. Neumaier, 1974): added from left to right, with the
/// rounding error of each addition added up beside. Nulls are passed over; null for no number.
///
/// Where the rows of a group come from several partitions, the sums of the partitions are added with
/// their errors. Both are within `n^2 2^-106` of the exact sum of numbers of one sign before the last
/// rounding, so that they differ only if that sum is as close as this to the middle of two doubles.
pub fn compensated_sum() -> AggregateUDF {
    AggregateFunction {
        name: "compensated_sum",
        about: "The sum of numbers in their order as Python's sum() gives it, with compensation for rounding errors.",
        arguments: vec![number("value", "A number; nulls are passed over.")],
        returns: DataType::Float64,
        state: vec![("sum", DataType::Float64), ("errors", DataType::Float64)],
        in_order: true,
        groups: |_| Ok(Groups::of(Sum)),
    }
    .udaf()
}

#[derive(Debug, Clone, Copy)]
struct Sum;

impl Aggregate for Sum {
    type Group = Option<Compensated>;
    type Rows<'a> = &'a Float64Array;
    type States<'a> = [&'a Float64Array; 2];

    fn rows<'a>(&self, columns: &'a [ArrayRef]) -> Result<Self::Rows<'a>> {
        match columns {
            [values, ..] => Ok(values.as_primitive::<Float64Type>()),
            [] => exec_err!("compensated_sum: no column"),
        }
    }

    fn update(&self, group: &mut Self::Group, rows: &Self::Rows<'_>, row: usize) -> Result<()> {
        if rows.is_valid(row) {
            group.get_or_insert_default().add(rows.value(row));
        }
        Ok(())
    }

    fn states<'a>(&self, columns: &'a [ArrayRef]) -> Result<Self::States<'a>> {
        match columns {
            [sums, errors] => Ok([sums, errors].map(|column| column.as_primitive::<Float64Type>())),
            _ => exec_err!("compensated_sum: {} state columns", columns.len()),
        }
    }

    fn merge(
        &self,
        group: &mut Self::Group,
        [sums, errors]: &Self::States<'_>,
        row: usize,
    ) -> Result<()> {
        if sums.is_valid(row) {
            let (sum, errors) = (sums.value(row), errors.value(row));
            group
                .get_or_insert_default()
                .merge(Compensated { sum, errors });
        }
        Ok(())
    }

    fn state(&self, groups: Vec<Self::Group>) -> Result<Vec<ArrayRef>> {
        let sums = groups.iter().map(|group| group.map(|group| group.sum));
        let errors = groups.iter().map(|group| group.map(|group| group.errors));
        let columns: [Float64Array; 2] = [sums.collect(), errors.collect()];
        Ok(columns
            .into_iter()
            .map(|column| Arc::new(column) as ArrayRef)
            .collect())
    }

    fn evaluate(&self, groups: Vec<Self::Group>) -> Result<ArrayRef> {
        let totals = groups
            .into_iter()
            .map(|group| group.map(Compensated::total));
        Ok(Arc::new(totals.collect::<Float64Array>()))
    }

    fn heap_size(_: &Self::Group) -> usize {
        0
    }
}
