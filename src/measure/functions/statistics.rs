//! The statistics of a set of scores: the scalar function [`list_statistics`] for scores in a list,
//! the aggregate function [`statistics`] for scores in the lists of many rows.

use std::mem::size_of;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array, StructArray};
use arrow::datatypes::{DataType, Field, Fields, Int64Type};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::scalar_doc_sections::DOC_SECTION_ARRAY;
use datafusion::logical_expr::{AggregateUDF, ScalarUDF};

use super::aggregate::{Aggregate, AggregateFunction, Groups, save_numbers, saved, saved_numbers};
use super::lists::NumberLists;
use super::scalar::{ScalarFunction, exactly, integer, numbers};
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
/// a row begins at `start`; positions that no row covers are missing. The order and the partitions of the rows do not
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
        state: saved(),
        in_order: false,
        groups: |_| Ok(Groups::of(Arrays)),
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

/// The statistics of at least one score.
struct Statistics {
    mean: f64,
    max: f64,
    min: f64,
    median: f64,
    std: Option<f64>,
    is_binary: bool,
}

#[derive(Default)]
struct Builder {
    rows: Vec<(usize, Option<Statistics>)>,
}

impl Builder {
    /// Appends the statistics of `scores`, whose mean and deviation the caller knows. Puts the scores into another order.
    fn append(&mut self, (mean, std): (f64, Option<f64>), scores: &mut [f64]) {
        let each = scores.iter().copied();
        let max = each.clone().reduce(|a, b| if b > a { b } else { a });
        let min = each.clone().reduce(|a, b| if b < a { b } else { a });
        let is_binary = each.clone().all(|score| score == 0.0 || score == 1.0);
        let statistics = max.zip(min).map(|(max, min)| Statistics {
            mean,
            max,
            min,
            median: 0.0 + median(scores),
            std,
            is_binary,
        });
        self.rows.push((scores.len(), statistics));
    }

    fn finish(self) -> StructArray {
        let counts = self.rows.iter().map(|(count, _)| i64::try_from(*count));
        let counts = counts.map(|count| count.unwrap_or(i64::MAX));
        let rows = || self.rows.iter().map(|(_, statistics)| statistics.as_ref());
        let float = |of: fn(&Statistics) -> Option<f64>| -> ArrayRef {
            Arc::new(rows().map(|row| of(row?)).collect::<Float64Array>())
        };
        let is_binary = rows().map(|row| Some(row?.is_binary));
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter_values(counts)),
            float(|of| Some(of.mean)),
            float(|of| Some(of.max)),
            float(|of| Some(of.min)),
            float(|of| Some(of.median)),
            float(|of| of.std),
            Arc::new(is_binary.collect::<BooleanArray>()),
        ];
        StructArray::new(fields(), columns, None)
    }
}

/// Returns mean and standard deviation of `count` scores among `len`; `None` is a missing score.
fn mean_and_std(
    len: usize,
    count: usize,
    score: impl Fn(usize) -> Option<f64>,
) -> (f64, Option<f64>) {
    let mean = pairwise_sum(len, |at| score(at).unwrap_or(0.0)) / count as f64;
    let squares = |at| score(at).map_or(0.0, |score| (mean - score) * (mean - score));
    let std = (count > 1).then(|| (pairwise_sum(len, squares) / (count - 1) as f64).sqrt());
    (mean, std.filter(|std| !std.is_nan()))
}

/// Returns the median of at least one score: the middle one, or the mean of the two middle ones.
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
    let (mut rows, mut scores) = (Builder::default(), Vec::new());
    for row in 0..values.len() {
        let places = values.places(row);
        let score = |at| values.at(places.start + at);
        scores.clear();
        scores.extend((0..places.len()).filter_map(score));
        let whole = mean_and_std(places.len(), scores.len(), score);
        rows.append(whole, &mut scores);
    }
    Ok(Arc::new(rows.finish()))
}

/// Gathers the array of each group. NaN marks a missing score, since JSON has no NaN.
#[derive(Debug, Clone, Copy)]
struct Arrays;

/// Returns the elements of an array from `start`, which is made `length` long if it is shorter.
fn places(array: &mut Vec<f64>, start: usize, length: usize) -> impl Iterator<Item = &mut f64> {
    if array.len() < length {
        array.resize(length, f64::NAN);
    }
    array.iter_mut().skip(start)
}

impl Aggregate for Arrays {
    type Group = Vec<f64>;
    type Rows<'a> = (NumberLists<'a>, [&'a Int64Array; 2]);

    fn rows<'a>(&self, columns: &'a [ArrayRef]) -> Result<Self::Rows<'a>> {
        let [parts, starts, lengths] = exactly(columns)?;
        let integers = [starts, lengths].map(|column| column.as_primitive::<Int64Type>());
        Ok((NumberLists::of(parts)?, integers))
    }

    fn update(&self, array: &mut Vec<f64>, rows: &Self::Rows<'_>, row: usize) -> Result<()> {
        let (parts, [starts, lengths]) = rows;
        let Some(part) = parts
            .row(row)
            .filter(|_| starts.is_valid(row) && lengths.is_valid(row))
        else {
            return Ok(());
        };
        let (len, start) = (parts.places(row).len(), starts.value(row));
        let length = usize::try_from(lengths.value(row)).unwrap_or_default();
        let from = usize::try_from(start).ok();
        let Some(from) = from.filter(|from| from.checked_add(len).is_some_and(|end| end <= length))
        else {
            return exec_err!(
                "statistics: a list of {len} at {start} is outside an array of {length}; \
                 count positions from 0 within the group"
            );
        };
        for (place, score) in places(array, from, length).zip(part) {
            if let Some(score) = score {
                *place = score;
            }
        }
        Ok(())
    }

    fn save(array: &Vec<f64>, saved: &mut Vec<u8>) {
        save_numbers(array.iter().copied(), saved);
    }

    fn merge(array: &mut Vec<f64>, saved: &[u8]) {
        let scores = saved_numbers(saved);
        for (place, score) in places(array, 0, saved.len() / size_of::<f64>()).zip(scores) {
            if !score.is_nan() {
                *place = score;
            }
        }
    }

    fn evaluate(&self, arrays: Vec<Vec<f64>>) -> Result<ArrayRef> {
        let mut rows = Builder::default();
        // In place: an array can have a number for each rollout of the run.
        for mut array in arrays {
            let score = |at: usize| array.get(at).copied().filter(|score| !score.is_nan());
            let count = array.iter().filter(|score| !score.is_nan()).count();
            let whole = mean_and_std(array.len(), count, score);
            array.retain(|score| !score.is_nan());
            rows.append(whole, &mut array);
        }
        Ok(Arc::new(rows.finish()))
    }

    fn heap_size(array: &Vec<f64>) -> usize {
        array.capacity() * size_of::<f64>()
    }
}
