//! [`GroupStates`]: what is known of the groups of an aggregation, and [`OneGroup`] of them.

use std::fmt::Debug;
use std::mem::size_of;

use arrow::array::{Array, ArrayRef, BooleanArray};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{Accumulator, EmitTo, GroupsAccumulator};

/// An accumulator of many groups that can stand in for that of one.
pub(super) trait GroupStates: GroupsAccumulator + Clone + Debug + Sync + 'static {
    /// Makes room for at least so many groups, without rows at first.
    fn grow(&mut self, groups: usize);

    /// The states of rows each of which is a group of its own; `self` has no groups.
    fn states_of_rows(
        mut self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let rows = values.first().map_or(0, |column| column.len());
        let groups: Vec<usize> = (0..rows).collect();
        self.update_batch(values, &groups, opt_filter, rows)?;
        self.state(EmitTo::All)
    }
}

/// The only group of an aggregation without `GROUP BY`, or the frame of a window.
#[derive(Debug)]
pub(super) struct OneGroup<G>(pub(super) G);

impl<G: GroupStates> Accumulator for OneGroup<G> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let rows = values.first().map_or(0, |column| column.len());
        self.0.update_batch(values, &vec![0; rows], None, 1)
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let rows = states.first().map_or(0, |column| column.len());
        self.0.merge_batch(states, &vec![0; rows], 1)
    }

    /// Leaves the group as it is: a window asks after every row.
    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.0.grow(1);
        let column = self.0.clone().evaluate(EmitTo::All)?;
        ScalarValue::try_from_array(&column, 0)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.0.grow(1);
        let columns = self.0.state(EmitTo::All)?;
        let scalar = |column: &ArrayRef| ScalarValue::try_from_array(column, 0);
        columns.iter().map(scalar).collect()
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.0.size()
    }
}
