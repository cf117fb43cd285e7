//! The statistics of a set of scores: the scalar function [`list_statistics`] for scores in a list,
//! the aggregate function [`statistics`] for scores in the lists of many rows.

use std::mem::size_of;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, BooleanBuilder, Float64Array, Float64Builder,
    Int64Array, ListArray, StructArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Fields, Float64Type, Int64Type};
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::logical_expr::scalar_doc_sections::DOC_SECTION_ARRAY;
use datafusion::logical_expr::{AggregateUDF, EmitTo, GroupsAccumulator, ScalarUDF};

use super::aggregate::{AggregateFunction, GroupStates};
use super::lists::NumberLists;
use super::scalar::{ScalarFunction, exactly, integer, list_of, numbers};
use super::sums::pairwise_sum;

/// `list_statistics(values DOUBLE[]) -> STRUCT(count, mean, max, min, median, std, is_binary)`: the
/// statistics of a list of scores; a null is a missing score.
///
/// The rules are those of `pandas.DataFrame.describe` as NeMo Gym uses it: `mean` is the sum divided by the
/// number of scores, `std` is `sqrt(sum((mean - score)^2) / (count - 1))`. Both sums are pairwise over the
/// whole list, with zero for a missing score. `std` is null for fewer than two scores, and all but `count`
/// is null without scores. `is_binary` is true if all scores are 0 or 1.
pub fn list_statistics() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_ARRAY,
        "list_statistics",
        "Count, mean, max, min, median and std (ddof 1) of a list, whose nulls are missing scores.",
        vec![numbers("values", "Scores in the order of the rollouts.")],
        DataType::Struct(fields()),
        of_lists,
    )
}

/// `statistics(values DOUBLE[], start BIGINT, length BIGINT) -> STRUCT(count, mean, max, min, median,
/// std, is_binary)`: the [`list_statistics`] of an array of `length` scores that arrives in parts. The list of
/// a row begins at `start`; what no row covers is missing. The order and the partitions of the rows do not
/// change any bit.
///
/// It holds 8 bytes for each of the `length` scores.
pub fn statistics() -> AggregateUDF {
    AggregateFunction {
        name: "statistics",
        about: "Count, mean, max, min, median and std (ddof 1) of an array that is given in parts.",
        arguments: vec![
            numbers("values", "A part of the array; null is a missing score."),
            integer("start", "Position of the part in the array, from 0."),
            integer("length", "Length of the array, the same in every row."),
        ],
        returns: DataType::Struct(fields()),
        state: vec![("scores", list_of(DataType::Float64))],
        in_order: false,
        groups: |_| Ok(Arrays::default()),
    }
    .udaf()
}

fn fields() -> Fields {
    let float = |name: &str| Field::new(name, DataType::Float64, true);
    Fields::from(vec![
        Field::new("count", DataType::Int64, false),
        float("mean"),
        float("max"),
        float("min"),
        float("median"),
        float("std"),
        Field::new("is_binary", DataType::Boolean, true),
    ])
}

#[derive(Default)]
struct Builder {
    count: Vec<i64>,
    mean: Float64Builder,
    max: Float64Builder,
    min: Float64Builder,
    median: Float64Builder,
    std: Float64Builder,
    is_binary: BooleanBuilder,
    scratch: Vec<f64>,
}

impl Builder {
    /// Appends the statistics of `len` scores; `None` is a missing score.
    fn append(&mut self, len: usize, score: impl Fn(usize) -> Option<f64>) {
        self.scratch.clear();
        self.scratch.extend((0..len).filter_map(&score));
        let count = self.scratch.len();
        self.count.push(i64::try_from(count).unwrap_or(i64::MAX));
        if count == 0 {
            for column in [&mut self.mean, &mut self.max, &mut self.min] {
                column.append_null();
            }
            self.median.append_null();
            self.std.append_null();
            self.is_binary.append_null();
            return;
        }
        let mean = pairwise_sum(len, |at| score(at).unwrap_or(0.0)) / count as f64;
        self.mean.append_value(mean);
        let scores = self.scratch.iter().copied();
        let is_binary = scores.clone().all(|score| score == 0.0 || score == 1.0);
        self.is_binary.append_value(is_binary);
        self.max
            .append_option(scores.clone().reduce(|a, b| if b > a { b } else { a }));
        self.min
            .append_option(scores.reduce(|a, b| if b < a { b } else { a }));
        let squares = |at| score(at).map_or(0.0, |score| (mean - score) * (mean - score));
        let std = (count > 1)
            .then(|| (pairwise_sum(len, squares) / (count - 1) as f64).sqrt())
            .filter(|std| !std.is_nan());
        self.std.append_option(std);
        self.median.append_value(0.0 + median(&mut self.scratch));
    }

    fn finish(mut self) -> StructArray {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(self.count)),
            Arc::new(self.mean.finish()),
            Arc::new(self.max.finish()),
            Arc::new(self.min.finish()),
            Arc::new(self.median.finish()),
            Arc::new(self.std.finish()),
            Arc::new(self.is_binary.finish()),
        ];
        StructArray::new(fields(), columns, None)
    }
}

/// Returns the middle one of at least one score, or the mean of the two middle ones.
fn median(scores: &mut [f64]) -> f64 {
    let middle = scores.len() / 2;
    let is_even = scores.len().is_multiple_of(2);
    let (below, upper, _) = scores.select_nth_unstable_by(middle, f64::total_cmp);
    let upper = *upper;
    match below.iter().copied().reduce(f64::max) {
        Some(lower) if is_even => (lower + upper) / 2.0,
        _ => upper,
    }
}

fn of_lists(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let [values] = exactly(columns)?;
    let values = NumberLists::of(values)?;
    let mut rows = Builder::default();
    for row in 0..values.len() {
        let places = values.places(row);
        rows.append(places.len(), |at| values.at(places.start + at));
    }
    Ok(Arc::new(rows.finish()))
}

/// The array of each group. NaN marks a missing score, since JSON has no NaN.
#[derive(Debug, Clone, Default)]
struct Arrays {
    arrays: Vec<Vec<f64>>,
    bytes: usize,
}

impl Arrays {
    fn of(&mut self, group: usize, len: usize) -> Result<&mut [f64]> {
        let Some(array) = self.arrays.get_mut(group) else {
            return exec_err!("statistics: no group {group}");
        };
        if array.len() < len {
            self.bytes += size_of::<f64>() * (len - array.len());
            array.resize(len, f64::NAN);
        }
        Ok(array)
    }

    fn put(&mut self, group: usize, part: &Float64Array, start: i64, length: i64) -> Result<()> {
        let end = usize::try_from(start)
            .ok()
            .and_then(|start| start.checked_add(part.len()));
        let length = usize::try_from(length).unwrap_or_default();
        let Some(end) = end.filter(|end| *end <= length) else {
            return exec_err!(
                "statistics: a list of {} at {start} is outside an array of {length}; \
                 count positions from 0 within the group",
                part.len()
            );
        };
        let places = self.of(group, length)?.iter_mut();
        for (place, score) in places.skip(end - part.len()).zip(part) {
            if let Some(score) = score {
                *place = score;
            }
        }
        Ok(())
    }

    fn take(&mut self, emit_to: EmitTo) -> Vec<Vec<f64>> {
        let taken = emit_to.take_needed(&mut self.arrays);
        let scores: usize = taken.iter().map(Vec::len).sum();
        self.bytes = self.bytes.saturating_sub(scores * size_of::<f64>());
        taken
    }
}

impl GroupStates for Arrays {
    fn grow(&mut self, groups: usize) {
        let groups = groups.max(self.arrays.len());
        self.arrays.resize_with(groups, Vec::new);
    }
}

impl GroupsAccumulator for Arrays {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        let [parts, starts, lengths] = values else {
            return exec_err!("statistics takes three arguments");
        };
        self.grow(total_num_groups);
        let parts = parts.as_list::<i32>().iter();
        let starts = starts.as_primitive::<Int64Type>().iter();
        let lengths = lengths.as_primitive::<Int64Type>().iter();
        let rows = parts.zip(starts).zip(lengths).zip(group_indices);
        for (row, (((part, start), length), &group)) in rows.enumerate() {
            let selected =
                opt_filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row));
            if let (true, Some(part), Some(start), Some(length)) = (selected, part, start, length) {
                self.put(group, part.as_primitive(), start, length)?;
            }
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let mut rows = Builder::default();
        for array in self.take(emit_to) {
            rows.append(array.len(), |at| {
                array.get(at).copied().filter(|score| !score.is_nan())
            });
        }
        Ok(Arc::new(rows.finish()))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let arrays = self.take(emit_to);
        let offsets = OffsetBuffer::from_lengths(arrays.iter().map(Vec::len));
        let scores = Float64Array::from(arrays.concat());
        let field = Arc::new(Field::new_list_field(DataType::Float64, true));
        let state = ListArray::try_new(field, offsets, Arc::new(scores), None::<NullBuffer>);
        Ok(vec![Arc::new(state?)])
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        let state = values
            .first()
            .ok_or_else(|| exec_datafusion_err!("statistics: no state"))?;
        self.grow(total_num_groups);
        for (array, &group) in state.as_list::<i32>().iter().zip(group_indices) {
            let Some(array) = array else { continue };
            let scores = array.as_primitive::<Float64Type>().values();
            let places = self.of(group, scores.len())?.iter_mut();
            for (place, score) in places.zip(scores).filter(|(_, score)| !score.is_nan()) {
                *place = *score;
            }
        }
        Ok(())
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        Self::default().states_of_rows(values, opt_filter)
    }

    fn size(&self) -> usize {
        self.arrays.capacity() * size_of::<Vec<f64>>() + self.bytes
    }
}
