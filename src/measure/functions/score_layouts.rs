//! The columns of gathered scores: [`Names`] number the metrics and the layouts that rollouts share, [`Keys`] find a
//! rollout's layout, [`State`] reads the columns and [`columns`] writes them.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Float64Builder, Int64Array, ListArray, StringArray, StructArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Fields, Float64Type};
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use indexmap::IndexSet;

use super::gather_scores::{Group, Known};
use super::lists::range;
use super::scalar::list_of;

/// Numbers metrics, and layouts: the metrics of a rollout in its order.
#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    metrics: IndexSet<Box<str>>,
    layouts: IndexSet<Box<[u32]>>,
}

impl Names {
    pub(super) fn metric(&mut self, name: &str) -> Result<u32> {
        let known = self.metrics.get_index_of(name);
        number(known.unwrap_or_else(|| self.metrics.insert_full(name.into()).0))
    }

    pub(super) fn layout(&mut self, metrics: &[u32]) -> Result<u32> {
        let known = self.layouts.get_index_of(metrics);
        number(known.unwrap_or_else(|| self.layouts.insert_full(metrics.into()).0))
    }

    /// Returns the approximate size in bytes.
    pub(super) fn bytes(&self) -> usize {
        (self.layouts.len() + self.metrics.len()) * 128
    }

    fn name(&self, metric: u32) -> &str {
        let name = self.metrics.get_index(metric as usize);
        name.map_or("", |name| name)
    }

    /// Returns the place of a metric in a layout.
    fn place(&self, layout: u32, metric: u32) -> Option<usize> {
        let layout = self.layouts.get_index(layout as usize)?;
        layout.iter().position(|known| *known == metric)
    }
}

fn number(index: usize) -> Result<u32> {
    u32::try_from(index).map_err(|_| exec_datafusion_err!("gather_scores: too many metrics"))
}

/// Reads the keys of consecutive rows; most rows have those of the previous row.
pub(super) struct Keys<'a> {
    keys: &'a StringArray,
    last: (usize, usize),
    pub(super) metrics: Vec<u32>,
    pub(super) layout: u32,
}

impl<'a> Keys<'a> {
    pub(super) fn new(keys: &'a StringArray) -> Self {
        Self {
            keys,
            last: (0, 0),
            metrics: Vec::new(),
            layout: 0,
        }
    }

    /// Returns the concatenated bytes of a row's keys.
    fn bytes(&self, start: usize, end: usize) -> &'a [u8] {
        let offsets = self.keys.value_offsets();
        let at = |row: usize| offsets.get(row).and_then(|at| usize::try_from(*at).ok());
        let range = at(start).zip(at(end)).map(|(start, end)| start..end);
        let bytes = range.and_then(|range| self.keys.value_data().get(range));
        bytes.unwrap_or_default()
    }

    fn lengths_are_those_of_last(&self, start: usize) -> bool {
        let (from, to) = self.last;
        (0..to - from)
            .all(|at| self.keys.value_length(from + at) == self.keys.value_length(start + at))
    }

    /// Moves to the row whose keys are `start..end`.
    pub(super) fn look(&mut self, start: usize, end: usize, names: &mut Names) -> Result<()> {
        let (from, to) = self.last;
        let is_same = to > from
            && to - from == end - start
            && self.bytes(from, to) == self.bytes(start, end)
            && self.lengths_are_those_of_last(start);
        self.last = (start, end);
        if is_same {
            return Ok(());
        }
        self.metrics.clear();
        for key in start..end {
            self.metrics.push(names.metric(self.keys.value(key))?);
        }
        self.layout = names.layout(&self.metrics)?;
        Ok(())
    }
}

/// Returns the fields of a metric's struct.
pub(super) fn fields() -> Fields {
    let integer = |name: &str, nullable| Field::new(name, DataType::Int64, nullable);
    Fields::from(vec![
        Field::new("metric", DataType::Utf8, false),
        Field::new("values", list_of(DataType::Float64), false),
        integer("first_rollout_index", false),
        integer("ordinal", false),
        integer("integers", false),
        integer("integer_max", true),
        integer("integer_min", true),
    ])
}

/// Reads a column of lists of the structs of [`fields`].
pub(super) struct State<'a> {
    pub(super) metrics: &'a StringArray,
    values: &'a ListArray,
    integers: [&'a Int64Array; 5],
}

impl<'a> State<'a> {
    pub(super) fn of(scores: &'a ListArray) -> Result<Self> {
        let scores = scores.values().as_struct();
        let [metrics, values, rest @ ..] = scores.columns() else {
            return exec_err!("gather_scores: no state");
        };
        let integers: Vec<&Int64Array> = rest.iter().map(|column| column.as_primitive()).collect();
        Ok(Self {
            metrics: metrics.as_string(),
            values: values.as_list(),
            integers: integers
                .try_into()
                .map_err(|_| exec_datafusion_err!("gather_scores: not a state"))?,
        })
    }

    pub(super) fn merge_known(&self, group: &mut Group, metric: u32, at: usize) {
        let [rollout, ordinal, integers, max, min] = self.integers;
        let first = (rollout.value(at), ordinal.value(at));
        let hint = group.known.len();
        let Some(known) = group.known(metric, hint, first) else {
            return;
        };
        known.integers += integers.value(at);
        if max.is_valid(at) && min.is_valid(at) {
            known.integer(max.value(at), min.value(at));
        }
    }

    pub(super) fn score(&self, at: usize, place: usize) -> Option<f64> {
        let places = range(self.values.value_offsets(), at)?;
        let scores = self.values.values().as_primitive::<Float64Type>();
        let place = places.start + place;
        (place < places.end && scores.is_valid(place)).then(|| scores.value(place))
    }
}

/// Returns the state columns of groups: rollout indices, and the structs.
pub(super) fn columns(mut groups: Vec<Group>, names: &Names) -> Result<(ListArray, ListArray)> {
    let num_scores = groups
        .iter()
        .map(|group| group.rows.len() * group.known.len());
    let num_scores: usize = num_scores.sum();
    if i32::try_from(num_scores).is_err() {
        return exec_err!("gather_scores: {num_scores} scores at a time are too many");
    }
    // Of the exact capacity: a builder that grows takes up to twice the memory.
    let mut scores = Float64Builder::with_capacity(num_scores);
    for group in &mut groups {
        group.rows.sort_by_key(|row| row.rollout_index);
        for known in &group.known {
            // Most rows have the layout of the previous one.
            let mut last = (u32::MAX, None);
            for row in &group.rows {
                if last.0 != row.layout {
                    last = (row.layout, names.place(row.layout, known.metric));
                }
                let score = last
                    .1
                    .and_then(|at| group.scores.get(row.start + at).copied());
                scores.append_option(score.filter(|score| !score.is_nan()));
            }
        }
        group.scores = Vec::new();
    }
    let known = || groups.iter().flat_map(|group| &group.known);
    let integers = |of: fn(&Known) -> Option<i64>| -> ArrayRef {
        Arc::new(known().map(of).collect::<Int64Array>())
    };
    let indices = groups.iter().flat_map(|group| &group.rows);
    let indices = Int64Array::from_iter_values(indices.map(|row| row.rollout_index));
    let num_rows = groups.iter().map(|group| group.rows.len());
    let of_metrics = groups
        .iter()
        .flat_map(|group| group.known.iter().map(|_| group.rows.len()));
    let metrics = known().map(|known| Some(names.name(known.metric)));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(metrics.collect::<StringArray>()),
        Arc::new(lists(of_metrics, Arc::new(scores.finish()))?),
        integers(|known| Some(known.first.0)),
        integers(|known| Some(known.first.1)),
        integers(|known| Some(known.integers)),
        integers(|known| known.extremes.map(|(max, _)| max)),
        integers(|known| known.extremes.map(|(_, min)| min)),
    ];
    let structs = StructArray::try_new(fields(), columns, None)?;
    let num_metrics = groups.iter().map(|group| group.known.len());
    Ok((
        lists(num_rows, Arc::new(indices))?,
        lists(num_metrics, Arc::new(structs))?,
    ))
}

fn lists(lengths: impl IntoIterator<Item = usize>, items: ArrayRef) -> Result<ListArray> {
    let item = Arc::new(Field::new_list_field(items.data_type().clone(), true));
    let lists = ListArray::try_new(item, OffsetBuffer::from_lengths(lengths), items, None);
    Ok(lists?)
}
