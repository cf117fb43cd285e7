//! [`Gathered`]: the scores of many groups while they arrive.
//!
//! A rollout is kept as its scores side by side and the layout that names them: nearly all
//! rollouts of a run have the same, so that a rollout costs 8 bytes a score and 24 beside.

use std::mem::size_of;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, ListArray, MapArray};
use arrow::datatypes::{Float64Type, Int64Type};
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};

use super::gathered_columns::{Builder, State};
use super::gathered_group::{Group, Row};
use super::group_states::GroupStates;
use super::layouts::{Keys, Names};
use super::number_lists::range;

/// The scores of all groups.
#[derive(Debug, Clone, Default)]
pub(super) struct Gathered {
    names: Names,
    groups: Vec<Group>,
    bytes: usize,
    /// The metrics of one rollout; kept for its room.
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

    /// The indices of rollouts, and the structs.
    fn emit(&mut self, emit_to: EmitTo) -> Result<(ListArray, ListArray)> {
        let groups = emit_to.take_needed(&mut self.groups);
        let bytes: usize = groups.iter().map(Group::bytes).sum();
        self.bytes = self.bytes.saturating_sub(bytes);
        let mut builder = Builder::for_groups(&groups);
        for group in groups {
            builder.append(group, &self.names)?;
        }
        builder.finish()
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
            let selected =
                opt_filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row));
            if !selected || indices.is_null(row) {
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
        // Twice, since what is emitted stands beside what it is made of.
        self.groups.capacity() * size_of::<Group>() + 2 * self.bytes + self.names.bytes()
    }
}

/// Where the entries of a row of a map are; nowhere for a null.
fn entries(map: &MapArray, row: usize) -> Range<usize> {
    let entries = range(map.value_offsets(), row).filter(|_| map.is_valid(row));
    entries.unwrap_or_default()
}

/// The integers of a row and where they begin, if it has one for each of its metrics.
fn integers_of(map: &MapArray, row: usize, metrics: usize) -> Option<(&Int64Array, usize)> {
    let entries = entries(map, row);
    (entries.len() == metrics).then(|| (map.values().as_primitive::<Int64Type>(), entries.start))
}

/// A column of the function's arguments or of its state.
fn column(columns: &[ArrayRef], at: usize) -> Result<&ArrayRef> {
    columns
        .get(at)
        .ok_or_else(|| exec_datafusion_err!("gather_scores: no column {at}"))
}
