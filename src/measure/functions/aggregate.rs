//! [`Aggregate`]: aggregate functions that look at one row at a time, and [`Groups`] of them.

use std::fmt::Debug;
use std::mem::size_of;

use arrow::array::{Array, ArrayRef, BooleanArray};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};

use super::group_states::GroupStates;

/// How the rows of a group become a value.
pub(super) trait Aggregate: Clone + Debug + Send + Sync + 'static {
    /// What is known of a group.
    type Group: Clone + Debug + Default + Send + Sync;
    /// The arguments of a batch; the columns of an `ORDER BY` in the call come behind them.
    type Rows<'a>;
    /// The states of a batch.
    type States<'a>;

    fn rows<'a>(&self, columns: &'a [ArrayRef]) -> Result<Self::Rows<'a>>;
    fn update(&self, group: &mut Self::Group, rows: &Self::Rows<'_>, row: usize) -> Result<()>;
    fn states<'a>(&self, columns: &'a [ArrayRef]) -> Result<Self::States<'a>>;
    fn merge(&self, group: &mut Self::Group, states: &Self::States<'_>, row: usize) -> Result<()>;
    fn state(&self, groups: Vec<Self::Group>) -> Result<Vec<ArrayRef>>;
    fn evaluate(&self, groups: Vec<Self::Group>) -> Result<ArrayRef>;
    /// Bytes beyond those of the value itself.
    fn heap_size(group: &Self::Group) -> usize;
}

/// All groups of an aggregation.
#[derive(Debug, Clone)]
pub(super) struct Groups<A: Aggregate> {
    aggregate: A,
    groups: Vec<A::Group>,
    /// The sum of the groups' heap sizes.
    heap: usize,
}

impl<A: Aggregate> Groups<A> {
    pub(super) fn of(aggregate: A) -> Self {
        Self {
            aggregate,
            groups: Vec::new(),
            heap: 0,
        }
    }

    fn change(
        &mut self,
        group: usize,
        change: impl FnOnce(&A, &mut A::Group) -> Result<()>,
    ) -> Result<()> {
        let Some(group_state) = self.groups.get_mut(group) else {
            return exec_err!("{:?}: no group {group}", self.aggregate);
        };
        let before = A::heap_size(group_state);
        change(&self.aggregate, group_state)?;
        self.heap = (self.heap + A::heap_size(group_state)).saturating_sub(before);
        Ok(())
    }

    fn take(&mut self, emit_to: EmitTo) -> Vec<A::Group> {
        let taken = emit_to.take_needed(&mut self.groups);
        let bytes: usize = taken.iter().map(A::heap_size).sum();
        self.heap = self.heap.saturating_sub(bytes);
        taken
    }
}

impl<A: Aggregate> GroupStates for Groups<A> {
    fn grow(&mut self, groups: usize) {
        if self.groups.len() < groups {
            self.groups.resize_with(groups, A::Group::default);
        }
    }
}

impl<A: Aggregate> GroupsAccumulator for Groups<A> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.grow(total_num_groups);
        let aggregate = self.aggregate.clone();
        let rows = aggregate.rows(values)?;
        for (row, &group) in group_indices.iter().enumerate() {
            if opt_filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row)) {
                self.change(group, |aggregate, group| {
                    aggregate.update(group, &rows, row)
                })?;
            }
        }
        Ok(())
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        self.grow(total_num_groups);
        let aggregate = self.aggregate.clone();
        let states = aggregate.states(values)?;
        for (row, &group) in group_indices.iter().enumerate() {
            self.change(group, |aggregate, group| {
                aggregate.merge(group, &states, row)
            })?;
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let groups = self.take(emit_to);
        self.aggregate.evaluate(groups)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let groups = self.take(emit_to);
        self.aggregate.state(groups)
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        Self::of(self.aggregate.clone()).states_of_rows(values, opt_filter)
    }

    fn size(&self) -> usize {
        self.groups.capacity() * size_of::<A::Group>() + self.heap
    }
}
