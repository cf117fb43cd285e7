//! The columns of gathered scores: [`Names`] number the metrics and the layouts that rollouts share, [`Keys`] find a
//! rollout's layout, [`State`] reads the columns and [`Builder`] writes them.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayBuilder, ArrayRef, AsArray, Float64Builder, Int64Array, Int64Builder, ListArray,
    StringArray, StringBuilder, StructArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Fields, Float64Type};
use datafusion::common::{Result, exec_datafusion_err, exec_err};

use super::gather_scores::Group;
use super::lists::range;
use super::scalar::list_of;

/// The numbers of a rollout's metrics, in the order of the rollout.
pub(super) type Layout = Arc<[u32]>;

/// Numbers metrics and layouts.
#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    names: Vec<Box<str>>,
    numbers: HashMap<Box<str>, u32>,
    pub(super) layouts: Vec<Layout>,
    layout_numbers: HashMap<Layout, u32>,
}

impl Names {
    pub(super) fn metric(&mut self, name: &str) -> Result<u32> {
        if let Some(number) = self.numbers.get(name) {
            return Ok(*number);
        }
        let number = number(self.names.len())?;
        self.names.push(name.into());
        self.numbers.insert(name.into(), number);
        Ok(number)
    }

    pub(super) fn layout(&mut self, metrics: &[u32]) -> Result<u32> {
        if let Some(number) = self.layout_numbers.get(metrics) {
            return Ok(*number);
        }
        let (layout, number) = (Layout::from(metrics), number(self.layouts.len())?);
        self.layouts.push(Arc::clone(&layout));
        self.layout_numbers.insert(layout, number);
        Ok(number)
    }

    /// Returns the approximate size in bytes.
    pub(super) fn bytes(&self) -> usize {
        (self.layouts.len() + self.names.len()) * 128
    }

    pub(super) fn name(&self, metric: u32) -> &str {
        let name = self.names.get(metric as usize);
        name.map_or("", |name| name)
    }
}

fn number(len: usize) -> Result<u32> {
    u32::try_from(len).map_err(|_| exec_datafusion_err!("gather_scores: too many metrics"))
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

#[derive(Default)]
pub(super) struct Builder {
    indices: Int64Builder,
    index_counts: Vec<usize>,
    metrics: StringBuilder,
    scores: Float64Builder,
    score_counts: Vec<usize>,
    first: Int64Builder,
    ordinal: Int64Builder,
    integers: Int64Builder,
    max: Int64Builder,
    min: Int64Builder,
    metric_counts: Vec<usize>,
}

impl Builder {
    /// Creates a builder of the exact capacity: one that grows takes up to twice the memory.
    pub(super) fn for_groups(groups: &[Group]) -> Self {
        let scores = groups
            .iter()
            .map(|group| group.rows.len() * group.known.len());
        Self {
            scores: Float64Builder::with_capacity(scores.sum()),
            indices: Int64Builder::with_capacity(groups.iter().map(|group| group.rows.len()).sum()),
            ..Self::default()
        }
    }

    pub(super) fn append(&mut self, mut group: Group, names: &Names) -> Result<()> {
        group.rows.sort_by_key(|row| row.rollout_index);
        let scores = self.scores.len() + group.rows.len() * group.known.len();
        if i32::try_from(scores).is_err() {
            return exec_err!("gather_scores: {scores} scores at a time are too many");
        }
        self.index_counts.push(group.rows.len());
        self.metric_counts.push(group.known.len());
        for row in &group.rows {
            self.indices.append_value(row.rollout_index);
        }
        for known in &group.known {
            self.metrics.append_value(names.name(known.metric));
            self.score_counts.push(group.rows.len());
            let (first, ordinal) = known.first;
            self.first.append_value(first);
            self.ordinal.append_value(ordinal);
            self.integers.append_value(known.integers);
            self.max.append_option(known.extremes.map(|(max, _)| max));
            self.min.append_option(known.extremes.map(|(_, min)| min));
            // Most rows have the layout of the previous one.
            let mut last = (u32::MAX, None);
            for row in &group.rows {
                if last.0 != row.layout {
                    let layout = names.layouts.get(row.layout as usize);
                    let at = layout.and_then(|layout| {
                        layout.iter().position(|metric| *metric == known.metric)
                    });
                    last = (row.layout, at);
                }
                let score = last
                    .1
                    .and_then(|at| group.scores.get(row.start + at).copied());
                self.scores
                    .append_option(score.filter(|score| !score.is_nan()));
            }
        }
        Ok(())
    }

    /// Returns the state columns: rollout indices, and the structs.
    pub(super) fn finish(mut self) -> Result<(ListArray, ListArray)> {
        let item = |data_type| Arc::new(Field::new_list_field(data_type, true));
        let indices = ListArray::try_new(
            item(DataType::Int64),
            OffsetBuffer::from_lengths(self.index_counts),
            Arc::new(self.indices.finish()),
            None,
        )?;
        let values = ListArray::try_new(
            item(DataType::Float64),
            OffsetBuffer::from_lengths(self.score_counts),
            Arc::new(self.scores.finish()),
            None,
        )?;
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.metrics.finish()),
            Arc::new(values),
            Arc::new(self.first.finish()),
            Arc::new(self.ordinal.finish()),
            Arc::new(self.integers.finish()),
            Arc::new(self.max.finish()),
            Arc::new(self.min.finish()),
        ];
        let structs = StructArray::try_new(fields(), columns, None)?;
        let scores = ListArray::try_new(
            item(DataType::Struct(fields())),
            OffsetBuffer::from_lengths(self.metric_counts),
            Arc::new(structs),
            None,
        )?;
        Ok((indices, scores))
    }
}
