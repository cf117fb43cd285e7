//! The aggregate function `gather_scores(rollout_index, metrics, integer_metrics)`: rollouts become lists of scores.
//!
//! [`Gathered`] keeps a rollout as its scores side by side and the layout that names them. Nearly all rollouts of a run
//! share one layout, so a rollout costs 8 bytes a score plus 24.

use std::mem::size_of;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, ListArray, MapArray};
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::{AggregateUDF, EmitTo, GroupsAccumulator};

use super::aggregate::{AggregateFunction, GroupStates, is_selected};
use super::lists::range;
use super::scalar::{argument, column, integer, list_of};
use super::score_layouts::{Keys, Names, State, columns, fields};
use crate::schema;

/// `gather_scores(rollout_index BIGINT, metrics MAP, integer_metrics MAP) -> STRUCT[]`: transposes the
/// rollouts of a group into a struct for every metric that at least one of them has, with
///
/// - `metric`, its name,
/// - `values`, an element for each rollout in the order of `rollout_index`, null where a rollout
///   lacks the metric,
/// - `first_rollout_index`, `ordinal`: the rollout in which it first appears, and its place among that
///   rollout's metrics,
/// - `integers`, `integer_max`, `integer_min`: how many rollouts have it and only integers, and the
///   extremes of these.
///
/// Rollouts of the same index keep the order in which they arrive.
pub fn gather_scores() -> AggregateUDF {
    let map = |value| DataType::Map(schema::map_entries(value), false);
    AggregateFunction {
        name: "gather_scores",
        about: "For the rollouts of a group, a struct for every metric with the list of its scores.",
        arguments: vec![
            integer("rollout_index", "Order of the scores."),
            argument("metrics", map(DataType::Float64), "Scores by name."),
            argument(
                "integer_metrics",
                map(DataType::Int64),
                "The scores as integers; null unless all are integers.",
            ),
        ],
        returns: list_of(DataType::Struct(fields())),
        state: vec![
            ("rollout_indices", list_of(DataType::Int64)),
            ("scores", list_of(DataType::Struct(fields()))),
        ],
        in_order: true,
        groups: |_| Ok(Gathered::default()),
    }
    .udaf()
}

/// The scores of all groups.
#[derive(Debug, Clone, Default)]
pub(super) struct Gathered {
    names: Names,
    groups: Vec<Group>,
    bytes: usize,
    /// Scratch space for the metrics of one rollout.
    metrics: Vec<u32>,
}

impl Gathered {
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

    /// Returns the state columns: rollout indices, and the structs.
    fn emit(&mut self, emit_to: EmitTo) -> Result<(ListArray, ListArray)> {
        let groups = emit_to.take_needed(&mut self.groups);
        let bytes: usize = groups.iter().map(Group::bytes).sum();
        self.bytes = self.bytes.saturating_sub(bytes);
        columns(groups, &self.names)
    }
}

impl GroupStates for Gathered {
    fn grow(&mut self, groups: usize) {
        let groups = groups.max(self.groups.len());
        self.groups.resize_with(groups, Group::default);
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
            if !is_selected(opt_filter, row) || indices.is_null(row) {
                continue;
            }
            let Range { start, end } = entries(metrics, row);
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
                    group.scores.push(if is_there {
                        scores.value(start + at)
                    } else {
                        f64::NAN
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
        Ok(Arc::new(self.emit(emit_to)?.1))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let (indices, scores) = self.emit(emit_to)?;
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
            let series = range(scores.value_offsets(), row).unwrap_or_default();
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
        Self::default().states_of_rows(values, opt_filter)
    }

    fn size(&self) -> usize {
        // Twice: the output exists beside its source while it is built.
        self.groups.capacity() * size_of::<Group>() + 2 * self.bytes + self.names.bytes()
    }
}

/// Returns the range of a row's entries in the map; empty for a null.
fn entries(map: &MapArray, row: usize) -> Range<usize> {
    let entries = range(map.value_offsets(), row).filter(|_| map.is_valid(row));
    entries.unwrap_or_default()
}

/// Returns the integers of a row and the position of its first, if each of its metrics has one.
fn integers_of(map: &MapArray, row: usize, metrics: usize) -> Option<(&Int64Array, usize)> {
    let entries = entries(map, row);
    (entries.len() == metrics).then(|| (map.values().as_primitive::<Int64Type>(), entries.start))
}

/// A rollout and the place of its first score.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    pub(super) rollout_index: i64,
    pub(super) start: usize,
    pub(super) layout: u32,
}

/// What a group records of a metric besides its scores.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    pub(super) metric: u32,
    pub(super) first: (i64, i64),
    pub(super) integers: i64,
    pub(super) extremes: Option<(i64, i64)>,
}

impl Known {
    pub(super) fn integer(&mut self, max: i64, min: i64) {
        let (a, b) = self.extremes.unwrap_or((max, min));
        self.extremes = Some((a.max(max), b.min(min)));
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Group {
    pub(super) rows: Vec<Row>,
    pub(super) scores: Vec<f64>,
    pub(super) known: Vec<Known>,
}

impl Group {
    pub(super) fn bytes(&self) -> usize {
        self.rows.capacity() * size_of::<Row>()
            + self.scores.capacity() * size_of::<f64>()
            + self.known.capacity() * size_of::<Known>()
    }

    /// Returns the entry of a metric, which is probably the one at `hint`.
    pub(super) fn known(
        &mut self,
        metric: u32,
        hint: usize,
        first: (i64, i64),
    ) -> Option<&mut Known> {
        let is_it = |known: &Known| known.metric == metric;
        let at = if self.known.get(hint).is_some_and(is_it) {
            hint
        } else {
            match self.known.iter().position(is_it) {
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
            }
        };
        let known = self.known.get_mut(at)?;
        known.first = known.first.min(first);
        Some(known)
    }
}
