//! Aggregate functions that need all rows of a group at once ([`OfRows`]), in the order of the call's `ORDER BY`
//! ([`InOrder`]).

use std::fmt::Debug;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryBuilder, Float64Array, ListArray, ListBuilder};
use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Float64Type};
use arrow::row::{RowConverter, Rows, SortField};
use datafusion::common::{Result, ScalarValue, exec_datafusion_err, exec_err};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::physical_expr::expressions::Literal;

use super::aggregate::{Aggregate, Groups};
use super::lists::{ListWriter, NumberLists, list_range};
use super::scalar::list_of;

/// Computes a value from all rows of a group, each of `N` numbers.
pub(super) trait OfRows<const N: usize>: Clone + Debug + Send + Sync + 'static {
    fn evaluate(&self, groups: impl Iterator<Item = Vec<[f64; N]>>) -> Result<ArrayRef>;
}

/// An aggregate that passes the rows on in the order of the call's `ORDER BY`.
#[derive(Debug, Clone)]
pub(super) struct InOrder<F, const N: usize> {
    of: F,
    order: Order,
}

impl<F: OfRows<N>, const N: usize> InOrder<F, N> {
    pub(super) fn groups(of: F, args: &AccumulatorArgs) -> Groups<Self> {
        let order = Order::of(args);
        Groups::of(Self { of, order })
    }
}

impl<F: OfRows<N>, const N: usize> Aggregate for InOrder<F, N> {
    type Group = OrderedRows<N>;
    type Rows<'a> = KeyedNumbers<'a, N>;
    type States<'a> = KeyedLists<'a>;

    fn rows<'a>(&self, columns: &'a [ArrayRef]) -> Result<Self::Rows<'a>> {
        self.order.rows(columns)
    }

    fn update(&self, group: &mut Self::Group, rows: &Self::Rows<'_>, row: usize) -> Result<()> {
        group.update(rows, row);
        Ok(())
    }

    fn states<'a>(&self, columns: &'a [ArrayRef]) -> Result<Self::States<'a>> {
        states(columns)
    }

    fn merge(&self, group: &mut Self::Group, states: &Self::States<'_>, row: usize) -> Result<()> {
        group.merge(states, row)
    }

    fn state(&self, groups: Vec<Self::Group>) -> Result<Vec<ArrayRef>> {
        OrderedRows::states(groups)
    }

    fn evaluate(&self, groups: Vec<Self::Group>) -> Result<ArrayRef> {
        self.of
            .evaluate(groups.into_iter().map(OrderedRows::into_rows))
    }

    fn heap_size(group: &Self::Group) -> usize {
        group.heap_size()
    }
}

/// The columns of a batch: `N` numbers, and the sort keys if the call has an `ORDER BY`.
pub(super) struct KeyedNumbers<'a, const N: usize> {
    numbers: [&'a Float64Array; N],
    keys: Option<Rows>,
}

/// The state columns of a batch.
pub(super) struct KeyedLists<'a> {
    numbers: NumberLists<'a>,
    keys: &'a ListArray,
}

/// How the keys of an `ORDER BY` sort.
#[derive(Debug, Clone)]
struct Order {
    options: Vec<SortOptions>,
    /// The number of argument columns, which precede the key columns.
    arguments: usize,
}

impl Order {
    fn of(args: &AccumulatorArgs) -> Self {
        Self {
            options: args.order_bys.iter().map(|key| key.options).collect(),
            arguments: args.exprs.len(),
        }
    }

    fn rows<'a, const N: usize>(&self, columns: &'a [ArrayRef]) -> Result<KeyedNumbers<'a, N>> {
        let Some((numbers, _)) = columns.split_first_chunk::<N>() else {
            return exec_err!("{} columns instead of {N}", columns.len());
        };
        let keys = columns.get(self.arguments..).unwrap_or_default();
        let field = |(key, options): (&ArrayRef, &SortOptions)| {
            SortField::new_with_options(key.data_type().clone(), *options)
        };
        let fields: Vec<SortField> = keys.iter().zip(&self.options).map(field).collect();
        let keys = if fields.len() == keys.len() && !keys.is_empty() {
            Some(RowConverter::new(fields)?.convert_columns(keys)?)
        } else {
            None
        };
        Ok(KeyedNumbers {
            numbers: numbers
                .each_ref()
                .map(|column| column.as_primitive::<Float64Type>()),
            keys,
        })
    }
}

fn states(columns: &[ArrayRef]) -> Result<KeyedLists<'_>> {
    match columns {
        [numbers, keys] => Ok(KeyedLists {
            numbers: NumberLists::of(numbers)?,
            keys: keys.as_list::<i32>(),
        }),
        _ => exec_err!("{} state columns instead of 2", columns.len()),
    }
}

/// The types of the state columns.
pub(super) fn state_types() -> Vec<(&'static str, DataType)> {
    vec![
        ("numbers", list_of(DataType::Float64)),
        ("keys", list_of(DataType::Binary)),
    ]
}

/// The rows of a group in the order of the call's `ORDER BY`, however they were split over partitions;
/// without an `ORDER BY`, in the order of their arrival. Rows with a null number are left out.
#[derive(Debug, Clone, Default)]
pub(super) struct OrderedRows<const N: usize> {
    rows: Vec<[f64; N]>,
    /// The sort keys, concatenated: each sorts as its bytes.
    keys: Vec<u8>,
    ends: Vec<usize>,
}

impl<const N: usize> OrderedRows<N> {
    fn update(&mut self, batch: &KeyedNumbers<'_, N>, row: usize) {
        if batch.numbers.iter().any(|column| column.is_null(row)) {
            return;
        }
        self.rows
            .push(batch.numbers.map(|column| column.value(row)));
        if let Some(keys) = &batch.keys {
            self.push_key(keys.row(row).as_ref());
        }
    }

    fn push_key(&mut self, key: &[u8]) {
        self.keys.extend_from_slice(key);
        self.ends.push(self.keys.len());
    }

    fn merge(&mut self, states: &KeyedLists<'_>, row: usize) -> Result<()> {
        let (Some(numbers), Some(keys)) = (states.numbers.row(row), list_range(states.keys, row))
        else {
            return Ok(());
        };
        let numbers: Vec<f64> = numbers.flatten().collect();
        self.rows.extend_from_slice(numbers.as_chunks().0);
        let all_keys = states.keys.values().as_binary::<i32>();
        keys.for_each(|place| self.push_key(all_keys.value(place)));
        Ok(())
    }

    fn states(groups: Vec<Self>) -> Result<Vec<ArrayRef>> {
        let mut numbers = ListWriter::with_capacity(groups.len());
        let mut keys = ListBuilder::new(BinaryBuilder::new());
        for group in groups {
            group
                .rows
                .iter()
                .flatten()
                .for_each(|&number| numbers.push(number));
            numbers.end_list()?;
            group
                .each_key()
                .for_each(|key| keys.values().append_value(key));
            keys.append(true);
        }
        Ok(vec![numbers.finish()?, Arc::new(keys.finish())])
    }

    fn each_key(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let ranges = starts.zip(&self.ends);
        ranges.map(|(start, &end)| self.keys.get(start..end).unwrap_or_default())
    }

    fn into_rows(self) -> Vec<[f64; N]> {
        if self.ends.len() != self.rows.len() || self.each_key().is_sorted() {
            return self.rows;
        }
        let mut keyed: Vec<(&[u8], &[f64; N])> = self.each_key().zip(&self.rows).collect();
        // Rows with equal keys are ordered by their numbers, so that the order does not depend on partitions.
        let numbers = |row: &[f64; N]| row.map(f64::to_bits);
        keyed.sort_unstable_by(|(key, row), (other_key, other_row)| {
            key.cmp(other_key)
                .then_with(|| numbers(row).cmp(&numbers(other_row)))
        });
        keyed.into_iter().map(|(_, row)| *row).collect()
    }

    fn heap_size(&self) -> usize {
        self.rows.capacity() * size_of::<[f64; N]>()
            + self.keys.capacity()
            + self.ends.capacity() * size_of::<usize>()
    }
}

/// Returns an argument that must be a constant of the query.
fn constant(
    function: &str,
    name: &str,
    args: &AccumulatorArgs,
    place: usize,
) -> Result<ScalarValue> {
    let literal = args
        .exprs
        .get(place)
        .and_then(|expr| expr.downcast_ref::<Literal>());
    let value = literal.map(Literal::value).filter(|value| !value.is_null());
    value.cloned().ok_or_else(|| {
        exec_datafusion_err!("{function}: {name} must be a constant that is not null; write a number or a query parameter")
    })
}

pub(super) fn constant_number(
    function: &str,
    name: &str,
    args: &AccumulatorArgs,
    place: usize,
) -> Result<f64> {
    match constant(function, name, args, place)? {
        ScalarValue::Float64(Some(value)) => Ok(value),
        other => exec_err!("{function}: {name} is {other}; write a number"),
    }
}

pub(super) fn constant_integer(
    function: &str,
    name: &str,
    args: &AccumulatorArgs,
    place: usize,
) -> Result<i64> {
    match constant(function, name, args, place)? {
        ScalarValue::Int64(Some(value)) => Ok(value),
        other => exec_err!("{function}: {name} is {other}; write a whole number"),
    }
}
