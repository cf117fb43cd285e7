//! Lists of numbers: [`NumberLists`] reads a column of them, [`lists`] makes one; and the function `list_quantiles`.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayBuilder, ArrayRef, AsArray, Float64Array, Float64Builder, ListArray, ListBuilder,
};
use arrow::datatypes::{DataType, Float64Type};
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::logical_expr::ScalarUDF;
use datafusion::logical_expr::scalar_doc_sections::DOC_SECTION_ARRAY;

use super::scalar::{ScalarFunction, exactly, list_of, numbers};

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

/// Returns a column of `len` lists of numbers. `write` appends those of a row; `None` is a null list.
pub(super) fn lists(
    len: usize,
    mut write: impl FnMut(usize, &mut Float64Builder) -> Result<Option<()>>,
) -> Result<ArrayRef> {
    let mut lists = ListBuilder::with_capacity(Float64Builder::new(), len);
    for row in 0..len {
        let list = write(row, lists.values())?;
        let end = lists.values().len();
        if i32::try_from(end).is_err() {
            return exec_err!(
                "lists of {end} numbers in one batch; use shorter lists or smaller batches"
            );
        }
        lists.append(list.is_some());
    }
    Ok(Arc::new(lists.finish()))
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
            numbers("values", "Numbers in any order; nulls are ignored."),
            numbers("probabilities", "Between 0 and 1."),
        ],
        list_of(DataType::Float64),
        compute,
    )
}

fn compute(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let [values, probabilities] = exactly(columns)?;
    let (values, probabilities) = (NumberLists::of(values)?, NumberLists::of(probabilities)?);
    let mut sorted: Vec<f64> = Vec::new();
    lists(values.len(), |row, quantiles| {
        sorted.clear();
        sorted.extend(values.row(row).into_iter().flatten().flatten());
        if sorted.is_empty() {
            return Ok(None);
        }
        sorted.sort_unstable_by(f64::total_cmp);
        for probability in probabilities.row(row).into_iter().flatten() {
            quantiles.append_option(probability.and_then(|share| quantile(&sorted, share)));
        }
        Ok(Some(()))
    })
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
