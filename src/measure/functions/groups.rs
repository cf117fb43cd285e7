//! Partial sums of many groups at a time, in the columns that travel between aggregation stages.

use std::mem::size_of;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Float64Array, Float64Builder, Int64Array, Int64Builder,
    ListBuilder,
};
use arrow::datatypes::{Float64Type, Int64Type};
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};

use super::pairwise::{PairwiseError, PairwiseSum, Part};

/// The sums of all groups.
#[derive(Debug, Default)]
pub(super) struct PairwiseGroups {
    sums: Vec<PairwiseSum>,
    heap: usize,
}

/// The sum of one group.
#[derive(Debug, Default)]
pub(super) struct PairwiseOne(pub(super) PairwiseGroups);

fn failed(error: PairwiseError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

fn columns<const N: usize>(values: &[ArrayRef]) -> Result<&[ArrayRef; N]> {
    values
        .try_into()
        .map_err(|_| exec_datafusion_err!("pairwise_sum: {} columns instead of {N}", values.len()))
}

/// A row of the function's arguments.
struct Term {
    value: f64,
    position: i64,
    length: i64,
}

/// The rows; nothing where one is filtered out or has a null.
fn terms(
    values: &[ArrayRef],
    filter: Option<&BooleanArray>,
) -> Result<impl Iterator<Item = Option<Term>>> {
    let [value, position, length] = columns::<3>(values)?;
    let rows = value.as_primitive::<Float64Type>().iter();
    let rows = rows.zip(position.as_primitive::<Int64Type>());
    let rows = rows.zip(length.as_primitive::<Int64Type>());
    Ok(rows
        .enumerate()
        .map(move |(row, ((value, position), length))| {
            let selected = filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row));
            selected.then_some(Term {
                value: value?,
                position: position?,
                length: length?,
            })
        }))
}

impl PairwiseGroups {
    fn change(
        &mut self,
        group: usize,
        change: impl FnOnce(&mut PairwiseSum) -> Result<(), PairwiseError>,
    ) -> Result<()> {
        let Some(sum) = self.sums.get_mut(group) else {
            return exec_err!("pairwise_sum: no group {group}");
        };
        let before = sum.heap_size();
        change(sum).map_err(failed)?;
        self.heap += sum.heap_size();
        self.heap = self.heap.saturating_sub(before);
        Ok(())
    }

    fn grow(&mut self, groups: usize) {
        if self.sums.len() < groups {
            self.sums.resize_with(groups, PairwiseSum::default);
        }
    }

    fn take(&mut self, emit_to: EmitTo) -> Vec<PairwiseSum> {
        let taken = emit_to.take_needed(&mut self.sums);
        let bytes: usize = taken.iter().map(PairwiseSum::heap_size).sum();
        self.heap = self.heap.saturating_sub(bytes);
        taken
    }

    pub(super) fn take_one(&mut self) -> Result<ArrayRef> {
        self.grow(1);
        self.evaluate(EmitTo::All)
    }

    pub(super) fn take_one_state(&mut self) -> Result<Vec<ArrayRef>> {
        self.grow(1);
        self.state(EmitTo::All)
    }
}

impl GroupsAccumulator for PairwiseGroups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.grow(total_num_groups);
        for (term, &group) in terms(values, opt_filter)?.zip(group_indices) {
            if let Some(Term {
                value,
                position,
                length,
            }) = term
            {
                self.change(group, |sum| sum.add(value, position, length))?;
            }
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let sums = self.take(emit_to);
        let totals: Float64Array = sums.iter().map(PairwiseSum::total).collect();
        Ok(Arc::new(totals))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let mut state = StateBuilder::default();
        for sum in self.take(emit_to) {
            state.append(sum.length(), &sum.parts())?;
        }
        Ok(state.finish())
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        let [lengths, starts, lens, sums] = columns::<4>(values)?;
        let lengths = lengths.as_primitive::<Int64Type>();
        self.grow(total_num_groups);
        let lists = starts.as_list::<i32>().iter();
        let lists = lists.zip(lens.as_list::<i32>().iter());
        let lists = lists.zip(sums.as_list::<i32>().iter());
        for ((((starts, lens), sums), length), &group) in lists.zip(lengths).zip(group_indices) {
            let (Some(starts), Some(lens), Some(sums), Some(length)) = (starts, lens, sums, length)
            else {
                continue;
            };
            let starts = starts.as_primitive::<Int64Type>().values();
            let lens = lens.as_primitive::<Int64Type>().values();
            let sums = sums.as_primitive::<Float64Type>().values();
            // A state of zeros alone has no parts, but its length must not be lost.
            self.change(group, |sum| sum.expect_length(length))?;
            for ((&start, &len), &part) in starts.iter().zip(lens.iter()).zip(sums.iter()) {
                let part = Part {
                    start: usize::try_from(start).unwrap_or(usize::MAX),
                    len: usize::try_from(len).unwrap_or(usize::MAX),
                    sum: part,
                };
                self.change(group, |sum| sum.merge(part, length))?;
            }
        }
        Ok(())
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let mut state = StateBuilder::default();
        for term in terms(values, opt_filter)? {
            match term {
                Some(Term {
                    value,
                    position,
                    length,
                }) => {
                    let part = Part {
                        start: usize::try_from(position).unwrap_or(usize::MAX),
                        len: 1,
                        sum: value,
                    };
                    state.append(usize::try_from(length).ok(), &[part])?;
                }
                None => state.append(None, &[])?,
            }
        }
        Ok(state.finish())
    }

    fn size(&self) -> usize {
        self.sums.capacity() * size_of::<PairwiseSum>() + self.heap
    }
}

#[derive(Default)]
struct StateBuilder {
    lengths: Vec<Option<i64>>,
    starts: ListBuilder<Int64Builder>,
    lens: ListBuilder<Int64Builder>,
    sums: ListBuilder<Float64Builder>,
}

impl StateBuilder {
    fn append(&mut self, length: Option<usize>, parts: &[Part]) -> Result<()> {
        let integer = |value: usize| {
            i64::try_from(value).map_err(|_| exec_datafusion_err!("pairwise_sum: {value} elements"))
        };
        self.lengths.push(length.map(integer).transpose()?);
        for part in parts {
            self.starts.values().append_value(integer(part.start)?);
            self.lens.values().append_value(integer(part.len)?);
            self.sums.values().append_value(part.sum);
        }
        self.starts.append(true);
        self.lens.append(true);
        self.sums.append(true);
        Ok(())
    }

    fn finish(mut self) -> Vec<ArrayRef> {
        vec![
            Arc::new(Int64Array::from(self.lengths)),
            Arc::new(self.starts.finish()),
            Arc::new(self.lens.finish()),
            Arc::new(self.sums.finish()),
        ]
    }
}
