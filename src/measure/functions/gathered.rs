//! [`Gathered`]: the scores of many groups while they arrive.
//!
//! A rollout is kept as its scores side by side and the [`Layout`] that names them: nearly all
//! rollouts of a run have the same, so that a rollout costs 8 bytes a score and 24 beside.

use std::collections::HashMap;
use std::mem::size_of;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayBuilder, ArrayRef, AsArray, BooleanArray, Int64Array, ListArray, MapArray,
    StringArray, StringBuilder, StructArray,
};
use arrow::array::{Float64Builder, Int64Builder};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Float64Type, Int64Type};
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};

use super::gather_scores::{column, fields};
use super::statistics::offset;

/// Numbers of the metrics that a rollout has, in its order.
type Layout = Arc<[u32]>;

/// Names of metrics and layouts by number.
#[derive(Debug, Default)]
struct Names {
    names: Vec<Box<str>>,
    numbers: HashMap<Box<str>, u32>,
    layouts: Vec<Layout>,
    layout_numbers: HashMap<Layout, u32>,
}

impl Names {
    fn metric(&mut self, name: &str) -> Result<u32> {
        if let Some(number) = self.numbers.get(name) {
            return Ok(*number);
        }
        let number = number(self.names.len())?;
        self.names.push(name.into());
        self.numbers.insert(name.into(), number);
        Ok(number)
    }

    fn layout(&mut self, metrics: &[u32]) -> Result<u32> {
        if let Some(number) = self.layout_numbers.get(metrics) {
            return Ok(*number);
        }
        let (layout, number) = (Layout::from(metrics), number(self.layouts.len())?);
        self.layouts.push(Arc::clone(&layout));
        self.layout_numbers.insert(layout, number);
        Ok(number)
    }

    fn name(&self, metric: u32) -> &str {
        let name = self.names.get(metric as usize);
        name.map_or("", |name| name)
    }
}

fn number(len: usize) -> Result<u32> {
    u32::try_from(len).map_err(|_| exec_datafusion_err!("gather_scores: too many metrics"))
}

/// A rollout, and where its scores begin.
#[derive(Debug, Clone, Copy)]
struct Row {
    rollout_index: i64,
    start: usize,
    layout: u32,
}

/// What is known of a metric beside its scores.
#[derive(Debug, Clone, Copy)]
struct Known {
    metric: u32,
    first: (i64, i64),
    integers: i64,
    extremes: Option<(i64, i64)>,
}

#[derive(Debug, Default)]
struct Group {
    rows: Vec<Row>,
    scores: Vec<f64>,
    known: Vec<Known>,
}

impl Group {
    fn bytes(&self) -> usize {
        self.rows.capacity() * size_of::<Row>()
            + self.scores.capacity() * size_of::<f64>()
            + self.known.capacity() * size_of::<Known>()
    }

    /// The entry of a metric, likely the one at `hint`.
    fn known(&mut self, metric: u32, hint: usize, first: (i64, i64)) -> Option<&mut Known> {
        let is_it = |known: &Known| known.metric == metric;
        let at = match self.known.get(hint).is_some_and(is_it) {
            true => hint,
            false => match self.known.iter().position(is_it) {
                Some(at) => at,
                None => {
                    self.known.push(Known {
                        metric,
                        first,
                        integers: 0,
                        extremes: None,
                    });
                    self.known.len() - 1
                }
            },
        };
        let known = self.known.get_mut(at)?;
        known.first = known.first.min(first);
        Some(known)
    }
}

impl Known {
    fn integer(&mut self, max: i64, min: i64) {
        let (a, b) = self.extremes.unwrap_or((max, min));
        self.extremes = Some((a.max(max), b.min(min)));
    }
}

/// The scores of all groups.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    names: Names,
    groups: Vec<Group>,
    bytes: usize,
    /// The metrics of one rollout; kept for its room.
    metrics: Vec<u32>,
}

impl Gathered {
    pub(super) fn grow(&mut self, groups: usize) {
        let groups = groups.max(self.groups.len());
        self.groups.resize_with(groups, Group::default);
    }

    fn change(
        &mut self,
        group: usize,
        change: impl FnOnce(&mut Group, &mut Names, &mut Vec<u32>) -> Result<()>,
    ) -> Result<()> {
        let Some(group) = self.groups.get_mut(group) else {
            return exec_err!("gather_scores: no group {group}");
        };
        let before = group.bytes();
        change(group, &mut self.names, &mut self.metrics)?;
        self.bytes += group.bytes();
        self.bytes = self.bytes.saturating_sub(before);
        Ok(())
    }

    fn take(&mut self, emit_to: EmitTo) -> Vec<Group> {
        let taken = emit_to.take_needed(&mut self.groups);
        let bytes: usize = taken.iter().map(Group::bytes).sum();
        self.bytes = self.bytes.saturating_sub(bytes);
        taken
    }
}

/// The keys of consecutive rows: most rows have the ones of the row before.
struct Keys<'a> {
    keys: &'a StringArray,
    last: (usize, usize),
    metrics: Vec<u32>,
    layout: u32,
}

impl<'a> Keys<'a> {
    fn new(keys: &'a StringArray) -> Self {
        Self {
            keys,
            last: (0, 0),
            metrics: Vec::new(),
            layout: 0,
        }
    }

    /// The bytes of the keys of a row, one after the other.
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

    /// Looks at the row whose keys are `start..end`.
    fn look(&mut self, start: usize, end: usize, names: &mut Names) -> Result<()> {
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

impl GroupsAccumulator for Gathered {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.grow(total_num_groups);
        let indices = column(values, 0)?.as_primitive::<Int64Type>();
        let (metrics, integers) = (column(values, 1)?.as_map(), column(values, 2)?.as_map());
        let scores = metrics.values().as_primitive::<Float64Type>();
        let mut keys = Keys::new(metrics.keys().as_string::<i32>());
        for (row, &group) in group_indices.iter().enumerate() {
            let selected =
                opt_filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row));
            if !selected || indices.is_null(row) {
                continue;
            }
            let (start, end) = entries(metrics, row);
            keys.look(start, end, &mut self.names)?;
            let rollout_index = indices.value(row);
            let integers = integers_of(integers, row, end - start);
            self.change(group, |group, _, _| {
                group.rows.push(Row {
                    rollout_index,
                    start: group.scores.len(),
                    layout: keys.layout,
                });
                for (at, &metric) in keys.metrics.iter().enumerate() {
                    let is_there = scores.is_valid(start + at);
                    // No score is NaN: JSON has no such number.
                    group.scores.push(match is_there {
                        true => scores.value(start + at),
                        false => f64::NAN,
                    });
                    let place = i64::try_from(at).unwrap_or(i64::MAX);
                    let known = group.known(metric, at, (rollout_index, place));
                    let integer = integers.and_then(|(integers, first)| {
                        let is_there = integers.is_valid(first + at);
                        is_there.then(|| integers.value(first + at))
                    });
                    if let (Some(known), Some(integer)) = (known, integer) {
                        known.integers += 1;
                        known.integer(integer, integer);
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let groups = self.take(emit_to);
        let mut builder = Builder::for_groups(&groups);
        for group in groups {
            builder.append(group, &self.names)?;
        }
        Ok(Arc::new(builder.finish()?.1))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let groups = self.take(emit_to);
        let mut builder = Builder::for_groups(&groups);
        for group in groups {
            builder.append(group, &self.names)?;
        }
        let (indices, scores) = builder.finish()?;
        Ok(vec![Arc::new(indices), Arc::new(scores)])
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        self.grow(total_num_groups);
        let indices = column(values, 0)?.as_list::<i32>();
        let scores = column(values, 1)?.as_list::<i32>();
        let state = State::of(scores)?;
        for (row, &group) in group_indices.iter().enumerate() {
            let rollouts = indices.value(row);
            let rollouts = rollouts.as_primitive::<Int64Type>().values();
            let ends = scores.value_offsets().get(row..row + 2).unwrap_or_default();
            let series = offset(ends, 0)..offset(ends, 1);
            self.change(group, |group, names, metrics| {
                let mut known = Vec::new();
                for at in series.clone() {
                    let metric = names.metric(state.metrics.value(at))?;
                    known.push(metric);
                    state.merge_known(group, metric, at);
                }
                for (place, &rollout_index) in rollouts.iter().enumerate() {
                    metrics.clear();
                    let start = group.scores.len();
                    for (at, metric) in series.clone().zip(&known) {
                        if let Some(score) = state.score(at, place) {
                            metrics.push(*metric);
                            group.scores.push(score);
                        }
                    }
                    group.rows.push(Row {
                        rollout_index,
                        start,
                        layout: names.layout(metrics)?,
                    });
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        // Each row is a group of its own.
        let rows = values.first().map_or(0, |column| column.len());
        let groups: Vec<usize> = (0..rows).collect();
        let mut state = Self::default();
        state.update_batch(values, &groups, opt_filter, rows)?;
        state.state(EmitTo::All)
    }

    fn size(&self) -> usize {
        let names = self.names.layouts.len() + self.names.names.len();
        // Twice, since what is emitted stands beside what it is made of.
        self.groups.capacity() * size_of::<Group>() + 2 * self.bytes + names * 128
    }
}

/// Where the entries of a row of a map are.
fn entries(map: &MapArray, row: usize) -> (usize, usize) {
    if map.is_null(row) {
        return (0, 0);
    }
    let ends = map.value_offsets().get(row..row + 2).unwrap_or_default();
    (offset(ends, 0), offset(ends, 1))
}

/// The integers of a row and where they begin, if it has one for each of its metrics.
fn integers_of(map: &MapArray, row: usize, metrics: usize) -> Option<(&Int64Array, usize)> {
    let (start, end) = entries(map, row);
    (end - start == metrics).then(|| (map.values().as_primitive::<Int64Type>(), start))
}

/// Columns of a list of what [`fields`] says.
struct State<'a> {
    metrics: &'a StringArray,
    values: &'a ListArray,
    integers: [&'a Int64Array; 5],
}

impl<'a> State<'a> {
    fn of(scores: &'a ListArray) -> Result<Self> {
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

    fn merge_known(&self, group: &mut Group, metric: u32, at: usize) {
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

    fn score(&self, at: usize, place: usize) -> Option<f64> {
        let ends = self.values.value_offsets().get(at..at + 2)?;
        let scores = self.values.values().as_primitive::<Float64Type>();
        let place = offset(ends, 0) + place;
        (place < offset(ends, 1) && scores.is_valid(place)).then(|| scores.value(place))
    }
}

#[derive(Default)]
struct Builder {
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
    /// With room for as many scores as the groups come to: a builder that grows takes up to twice as much.
    fn for_groups(groups: &[Group]) -> Self {
        let scores = groups
            .iter()
            .map(|group| group.rows.len() * group.known.len());
        Self {
            scores: Float64Builder::with_capacity(scores.sum()),
            indices: Int64Builder::with_capacity(groups.iter().map(|group| group.rows.len()).sum()),
            ..Self::default()
        }
    }

    fn append(&mut self, mut group: Group, names: &Names) -> Result<()> {
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
            // Of the rows, most have the layout of the one before.
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

    /// The indices of rollouts, and the structs.
    fn finish(mut self) -> Result<(ListArray, ListArray)> {
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
