//! Lists of numbers: [`NumberLists`] reads a column of them, [`ListWriter`] writes one; and the functions `list_quantiles`,
//! `mean_of_each_first_k` and `std_of_each_first_k`.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, ListArray, NullBufferBuilder};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Float64Type, Int64Type};
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::logical_expr::ScalarUDF;
use datafusion::logical_expr::scalar_doc_sections::{DOC_SECTION_ARRAY, DOC_SECTION_MATH};

use super::each_k::SCORES;
use super::scalar::{Argument, ScalarFunction, exactly, integer, list_of, numbers};
use super::summary_each::Moments;
use super::sums::Compensated;

/// A column of lists of numbers.
pub(super) struct NumberLists<'a> {
    lists: &'a ListArray,
    items: &'a Float64Array,
}

impl<'a> NumberLists<'a> {
    /// The column, which is a `List<Float64>`.
    pub(super) fn of(column: &'a ArrayRef) -> Result<Self> {
        let wrong = || exec_datafusion_err!("{} instead of List(Float64)", column.data_type());
        let lists = column.as_list_opt::<i32>().ok_or_else(wrong)?;
        let items = lists.values().as_primitive_opt::<Float64Type>();
        Ok(Self {
            lists,
            items: items.ok_or_else(wrong)?,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.lists.len()
    }

    /// Returns the range of a row's elements; empty for a null.
    pub(super) fn places(&self, row: usize) -> Range<usize> {
        list_range(self.lists, row).unwrap_or_default()
    }

    pub(super) fn at(&self, place: usize) -> Option<f64> {
        let valid = place < self.items.len() && self.items.is_valid(place);
        valid.then(|| self.items.value(place))
    }

    /// Returns the elements of a row's list; `None` for a null.
    pub(super) fn row(&self, row: usize) -> Option<impl Iterator<Item = Option<f64>> + use<'a>> {
        let range = list_range(self.lists, row)?;
        let values = self.items.values().get(range.clone())?;
        let nulls = self.items.nulls().filter(|nulls| nulls.null_count() > 0);
        let elements = values.iter().zip(range);
        Some(elements.map(move |(&value, place)| {
            let valid = nulls.is_none_or(|nulls| nulls.is_valid(place));
            valid.then_some(value)
        }))
    }
}

/// Returns the range of a row's elements; `None` for a null.
pub(super) fn list_range(lists: &ListArray, row: usize) -> Option<Range<usize>> {
    let range = range(lists.value_offsets(), row)?;
    lists.is_valid(row).then_some(range)
}

/// Returns the range between the offset of a row and the next.
pub(super) fn range(offsets: &[i32], row: usize) -> Option<Range<usize>> {
    match offsets.get(row..row + 2)? {
        [start, end] => Some(*start as usize..*end as usize),
        _ => None,
    }
}

/// Builds a column of lists of numbers.
pub(super) struct ListWriter {
    items: Vec<f64>,
    valid: NullBufferBuilder,
    ends: Vec<i32>,
    lists: NullBufferBuilder,
}

impl ListWriter {
    pub(super) fn with_capacity(rows: usize) -> Self {
        let mut ends = Vec::with_capacity(rows + 1);
        ends.push(0);
        Self {
            items: Vec::new(),
            valid: NullBufferBuilder::new(0),
            ends,
            lists: NullBufferBuilder::new(rows),
        }
    }

    pub(super) fn push(&mut self, item: f64) {
        self.items.push(item);
        self.valid.append_non_null();
    }

    pub(super) fn push_option(&mut self, item: Option<f64>) {
        self.items.push(item.unwrap_or_default());
        self.valid.append(item.is_some());
    }

    /// Repeats the items of an ended list that has no nulls.
    pub(super) fn push_again(&mut self, items: Range<usize>) {
        self.valid.append_n_non_nulls(items.len());
        self.items.extend_from_within(items);
    }

    /// Ends the list of a row and returns the range of its items.
    pub(super) fn end_list(&mut self) -> Result<Range<usize>> {
        let (start, end) = (
            self.ends.last().copied().unwrap_or_default(),
            self.items.len(),
        );
        let too_long = |_| {
            exec_datafusion_err!(
                "lists of {end} numbers in one batch; use shorter lists or smaller batches"
            )
        };
        self.ends.push(i32::try_from(end).map_err(too_long)?);
        self.lists.append_non_null();
        Ok(start as usize..end)
    }

    pub(super) fn null_list(&mut self) {
        self.ends.extend(self.ends.last().copied());
        self.lists.append_null();
    }

    pub(super) fn finish(mut self) -> Result<ArrayRef> {
        let items = Float64Array::try_new(self.items.into(), self.valid.finish())?;
        let field = Arc::new(Field::new_list_field(items.data_type().clone(), true));
        let ends = OffsetBuffer::new(ScalarBuffer::from(self.ends));
        let lists = ListArray::try_new(field, ends, Arc::new(items), self.lists.finish())?;
        Ok(Arc::new(lists))
    }
}

/// `list_quantiles(values DOUBLE[], probabilities DOUBLE[]) -> DOUBLE[]`: the quantiles of a list,
/// without its nulls, interpolated linearly between neighbors, as `numpy.quantile` does by default
/// (type 7 of Hyndman and Fan, 1996). Null for a list without values.
pub fn list_quantiles() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_ARRAY,
        "list_quantiles",
        "Quantiles of a list, interpolated linearly.",
        vec![
            numbers("values", "Numbers in any order; nulls are passed over."),
            numbers("probabilities", "Between 0 and 1."),
        ],
        list_of(DataType::Float64),
        compute,
    )
}

fn compute(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let [values, probabilities] = exactly(columns)?;
    let (values, probabilities) = (NumberLists::of(values)?, NumberLists::of(probabilities)?);
    let mut quantiles = ListWriter::with_capacity(values.len());
    let mut sorted: Vec<f64> = Vec::new();
    for row in 0..values.len() {
        sorted.clear();
        sorted.extend(values.row(row).into_iter().flatten().flatten());
        if sorted.is_empty() {
            quantiles.null_list();
            continue;
        }
        sorted.sort_unstable_by(f64::total_cmp);
        for probability in probabilities.row(row).into_iter().flatten() {
            quantiles.push_option(probability.and_then(|share| quantile(&sorted, share)));
        }
        quantiles.end_list()?;
    }
    quantiles.finish()
}

/// Returns the quantile of ascending numbers, interpolated linearly between neighbors; `None` without numbers, or if
/// `probability` is not from 0 to 1.
pub(in crate::measure) fn quantile(ascending: &[f64], probability: f64) -> Option<f64> {
    if !(0.0..=1.0).contains(&probability) {
        return None;
    }
    let place = probability * ascending.len().checked_sub(1)? as f64;
    let (below, above) = (place.floor(), place.ceil());
    let low = ascending.get(below as usize)?;
    let high = ascending.get(above as usize)?;
    // Start from the nearer neighbor, as numpy does.
    let share = place - below;
    Some(if share < 0.5 {
        low + (high - low) * share
    } else {
        high - (high - low) * (1.0 - share)
    })
}

/// Returns the number in the middle, or the mean of the two, as Python's `statistics` and pandas do; `None` without
/// numbers. `quantile` of 0.5 can differ in the last digit.
pub(in crate::measure) fn median(ascending: &[f64]) -> Option<f64> {
    let middle = ascending.len() / 2;
    let high = ascending.get(middle)?;
    match ascending.len() % 2 {
        1 => Some(*high),
        _ => Some((ascending.get(middle - 1)? + high) / 2.0),
    }
}

/// `mean_of_each_first_k(values DOUBLE[], max_k BIGINT) -> DOUBLE[]`: for k = 1, 2, ..., `max_k` the
/// mean of the scores in the first k positions, which is Python's `sum()` divided by their number; null
/// until there is one. Past the end of the list the mean stays the same. A null argument gives null.
pub fn mean_of_each_first_k() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_MATH,
        "mean_of_each_first_k",
        "The mean of the scores among the first k rollouts, for each k up to max_k.",
        arguments(),
        list_of(DataType::Float64),
        |columns| each_first_k("mean_of_each_first_k", columns, |moments, _| moments.mean()),
    )
}

/// `std_of_each_first_k(values DOUBLE[], max_k BIGINT) -> DOUBLE[]`: for k = 1, 2, ..., `max_k` the
/// sample standard deviation (ddof 1) of the scores in the first k positions; null for fewer than two.
/// For the first 1,000 scores it is `sqrt(sum((score - mean)^2) / (n - 1))` with Python's `sum()`. Past
/// the end of the list it stays the same. A null argument gives null.
pub fn std_of_each_first_k() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_MATH,
        "std_of_each_first_k",
        "The sample standard deviation of the scores among the first k rollouts, for each k up to max_k.",
        arguments(),
        list_of(DataType::Float64),
        |columns| each_first_k("std_of_each_first_k", columns, std),
    )
}

/// Beyond this many scores one pass replaces a new sum for each k; the results agree within a few bits.
const TWO_PASSES: usize = 1_000;

fn std(moments: &Moments, scores: &[f64]) -> Option<f64> {
    if scores.len() > TWO_PASSES {
        return moments.std();
    }
    let mean = moments.mean()?;
    let squares = scores.iter().map(|score| (score - mean) * (score - mean));
    let squares: Compensated = squares.collect();
    (scores.len() > 1).then(|| (squares.total() / (scores.len() - 1) as f64).sqrt())
}

fn arguments() -> Vec<Argument> {
    vec![
        numbers("values", SCORES),
        integer(
            "max_k",
            "The largest k, and the length of the list returned.",
        ),
    ]
}

/// Returns `max_k` as a length, or an error if it is negative.
pub(super) fn length(function: &str, max_k: i64) -> Result<usize> {
    usize::try_from(max_k)
        .map_err(|_| exec_datafusion_err!("{function}: max_k = {max_k}; give 0 or more"))
}

fn each_first_k(
    function: &str,
    columns: &[ArrayRef],
    statistic: impl Fn(&Moments, &[f64]) -> Option<f64>,
) -> Result<ArrayRef> {
    let [values, max_k] = exactly(columns)?;
    let values = NumberLists::of(values)?;
    let max_k = max_k.as_primitive::<Int64Type>();
    let mut lists = ListWriter::with_capacity(values.len());
    for row in 0..values.len() {
        let max_k = max_k.is_valid(row).then(|| max_k.value(row));
        let (Some(scores), Some(max_k)) = (values.row(row), max_k) else {
            lists.null_list();
            continue;
        };
        let mut moments = Moments::default();
        let (mut last, mut so_far) = (None, Vec::new());
        let mut scores = scores.fuse();
        for _ in 0..length(function, max_k)? {
            if let Some(score) = scores.next().flatten() {
                moments.add(score);
                so_far.push(score);
                last = statistic(&moments, &so_far);
            }
            lists.push_option(last);
        }
        lists.end_list()?;
    }
    lists.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_linear_between_numbers() {
        let numbers = [1.0, 2.0, 4.0, 8.0];
        for (probability, expected) in
            [(0.0, 1.0), (0.25, 1.75), (0.5, 3.0), (0.9, 6.8), (1.0, 8.0)]
        {
            let got = quantile(&numbers, probability).unwrap();
            assert!((got - expected).abs() < 1e-12, "{probability}: {got}");
        }
        assert_eq!(quantile(&[5.0], 0.3), Some(5.0));
        assert_eq!(quantile(&[1.0, f64::INFINITY], 0.0), Some(1.0));
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&numbers, 1.5), None);
        assert_eq!(median(&numbers), Some(3.0));
        assert_eq!(median(&numbers[..3]), Some(2.0));
        assert_eq!(median(&[]), None);
    }
}
