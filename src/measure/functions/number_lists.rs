//! Lists of numbers as functions read and write them.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, ListArray, NullBufferBuilder};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{Field, Float64Type};
use datafusion::common::{Result, exec_datafusion_err};

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

    /// Where the elements of a row's list are; nowhere for a null.
    pub(super) fn places(&self, row: usize) -> Range<usize> {
        list_range(self.lists, row).unwrap_or_default()
    }

    pub(super) fn at(&self, place: usize) -> Option<f64> {
        let valid = place < self.items.len() && self.items.is_valid(place);
        valid.then(|| self.items.value(place))
    }

    /// The elements of a row's list; nothing for a null.
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

/// Where the elements of a row's list are; nothing for a null.
pub(super) fn list_range(lists: &ListArray, row: usize) -> Option<Range<usize>> {
    let range = range(lists.value_offsets(), row)?;
    lists.is_valid(row).then_some(range)
}

/// What lies between the offset of a row and the next.
pub(super) fn range(offsets: &[i32], row: usize) -> Option<Range<usize>> {
    match offsets.get(row..row + 2)? {
        [start, end] => Some(*start as usize..*end as usize),
        _ => None,
    }
}

/// A column of lists of numbers in the making.
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

    /// Repeats the items of a list that has ended and has no nulls.
    pub(super) fn push_again(&mut self, items: Range<usize>) {
        self.valid.append_n_non_nulls(items.len());
        self.items.extend_from_within(items);
    }

    /// Ends the list of a row; where its items are.
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
