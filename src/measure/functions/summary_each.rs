//! The aggregate function `summary_each`.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, ListArray, NullBufferBuilder, StructArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Fields};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::AggregateUDF;

use super::aggregate::{Aggregate, Groups};
use super::aggregate_function::AggregateFunction;
use super::argument::{list_of, numbers};
use super::moments::{Moments, STATE};
use super::number_lists::{ListWriter, NumberLists};

/// `summary_each(list DOUBLE[] [ORDER BY ...]) -> STRUCT(count BIGINT, sum DOUBLE, mean DOUBLE, std
/// DOUBLE)[]`: for each position the summary of the elements that the lists of a group have there;
/// nulls and the missing tails of shorter lists are passed over.
///
/// `sum` is that of [`compensated_sum`](super::compensated_sum) in the order of the rows, `mean` is
/// `sum / count`, `std` the sample standard deviation (ddof 1), null for a count below 2. All but the
/// count are null for a count of 0. Null lists are passed over; null where there is no list.
pub fn summary_each() -> AggregateUDF {
    AggregateFunction {
        name: "summary_each",
        about: "Count, sum, mean and sample standard deviation of the elements of lists, position by position.",
        arguments: vec![numbers("list", "A list; null elements and missing ones are passed over.")],
        returns: list_of(DataType::Struct(fields())),
        state: vec![("moments", list_of(DataType::Float64))],
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
    type States<'a> = NumberLists<'a>;

    fn rows<'a>(&self, columns: &'a [ArrayRef]) -> Result<Self::Rows<'a>> {
        match columns {
            [lists, ..] => NumberLists::of(lists),
            [] => exec_err!("summary_each: no column"),
        }
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

    fn states<'a>(&self, columns: &'a [ArrayRef]) -> Result<Self::States<'a>> {
        self.rows(columns)
    }

    fn merge(&self, group: &mut Self::Group, states: &Self::States<'_>, row: usize) -> Result<()> {
        let Some(state) = states.row(row) else {
            return Ok(());
        };
        let group = group.get_or_insert_default();
        let state: Vec<f64> = state.map(Option::unwrap_or_default).collect();
        let (states, _) = state.as_chunks::<STATE>();
        if group.len() < states.len() {
            group.resize(states.len(), Moments::default());
        }
        for (moments, state) in group.iter_mut().zip(states) {
            moments.merge(&Moments::from_state(state));
        }
        Ok(())
    }

    fn state(&self, groups: Vec<Self::Group>) -> Result<Vec<ArrayRef>> {
        let mut states = ListWriter::with_capacity(groups.len());
        for group in groups {
            match group {
                Some(group) => {
                    let numbers = group.iter().flat_map(Moments::state);
                    numbers.for_each(|number| states.push(number));
                    states.end_list()?;
                }
                None => states.null_list(),
            }
        }
        Ok(vec![states.finish()?])
    }

    fn evaluate(&self, groups: Vec<Self::Group>) -> Result<ArrayRef> {
        let elements = || groups.iter().flatten().flatten();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter_values(
                elements().map(|m| m.count().cast_signed()),
            )),
            Arc::new(elements().map(Moments::sum).collect::<Float64Array>()),
            Arc::new(elements().map(Moments::mean).collect::<Float64Array>()),
            Arc::new(elements().map(Moments::std).collect::<Float64Array>()),
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
