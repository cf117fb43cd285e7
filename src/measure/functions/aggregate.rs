//! What the aggregate functions share: [`AggregateFunction`] declares one, [`GroupStates`] holds the state of all groups,
//! and [`Aggregate`] defines a function that looks at one row at a time.

use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::mem::size_of;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, LargeBinaryBuilder};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue, exec_err, not_impl_err};
use datafusion::logical_expr::aggregate_doc_sections::DOC_SECTION_STATISTICAL;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::{AggregateOrderSensitivity, format_state_name};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, EmitTo, GroupsAccumulator,
    ReversedUDAF, Signature, Volatility,
};

use super::scalar::{self, Argument, exactly};

/// Declares an aggregate function: its name, arguments, types, and the constructor of a call's [`GroupStates`].
#[derive(Debug)]
pub(super) struct AggregateFunction<G> {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) arguments: Vec<Argument>,
    pub(super) returns: DataType,
    pub(super) state: Vec<(&'static str, DataType)>,
    pub(super) in_order: bool,
    pub(super) groups: fn(&AccumulatorArgs) -> Result<G>,
}

impl<G: GroupStates> AggregateFunction<G> {
    pub(super) fn udaf(self) -> AggregateUDF {
        AggregateUDF::from(Udaf {
            documentation: scalar::document(
                DOC_SECTION_STATISTICAL,
                self.name,
                self.about,
                &self.arguments,
            ),
            signature: Signature::user_defined(Volatility::Immutable),
            function: self,
        })
    }

    fn groups(&self, args: &AccumulatorArgs) -> Result<G> {
        if args.is_distinct {
            return not_impl_err!(
                "{0}(DISTINCT ...); apply {0} to a subquery with DISTINCT",
                self.name
            );
        }
        (self.groups)(args)
    }
}

#[derive(Debug)]
struct Udaf<G> {
    function: AggregateFunction<G>,
    signature: Signature,
    documentation: Documentation,
}

impl<G> PartialEq for Udaf<G> {
    fn eq(&self, other: &Self) -> bool {
        self.function.name == other.function.name
    }
}

impl<G> Eq for Udaf<G> {}

impl<G> Hash for Udaf<G> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.function.name.hash(state);
    }
}

impl<G: GroupStates> AggregateUDFImpl for Udaf<G> {
    fn name(&self) -> &str {
        self.function.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        scalar::coerce(self.function.name, &self.function.arguments, given)
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.function.returns.clone())
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let field = |(name, data_type): &(&str, DataType)| {
            let name = format_state_name(args.name, name);
            Arc::new(Field::new(name, data_type.clone(), true))
        };
        Ok(self.function.state.iter().map(field).collect())
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        if self.function.in_order {
            AggregateOrderSensitivity::HardRequirement
        } else {
            AggregateOrderSensitivity::Insensitive
        }
    }

    /// Without a reverse, the planner also drops the order of the call.
    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(OneGroup(self.function.groups(&args)?)))
    }

    fn groups_accumulator_supported(&self, _: AccumulatorArgs) -> bool {
        true
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(Box::new(self.function.groups(&args)?))
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}

/// An accumulator of many groups, which also serves for one.
pub(super) trait GroupStates: GroupsAccumulator + Clone + Debug + Sync + 'static {
    /// Makes room for at least `groups` groups; new ones have no rows.
    fn grow(&mut self, groups: usize);

    /// Returns the states of rows, taking each row as a group of its own; `self` has no groups.
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

/// Adapts [`GroupStates`] to one group: an aggregation without `GROUP BY`, or a window frame.
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

    /// Leaves the group as it is, since a window evaluates it after every row.
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

/// Defines an aggregate function that looks at one row at a time.
pub(super) trait Aggregate: Clone + Debug + Send + Sync + 'static {
    /// The state of a group.
    type Group: Clone + Debug + Default + Send + Sync;
    /// The argument columns of a batch, followed by those of the call's `ORDER BY`.
    type Rows<'a>;

    fn rows<'a>(&self, columns: &'a [ArrayRef]) -> Result<Self::Rows<'a>>;
    fn update(&self, group: &mut Self::Group, rows: &Self::Rows<'_>, row: usize) -> Result<()>;
    /// Appends the state of a group to `saved`, from which [`Aggregate::merge`] reads it.
    fn save(group: &Self::Group, saved: &mut Vec<u8>);
    /// Adds a group that was saved.
    fn merge(group: &mut Self::Group, saved: &[u8]);
    fn evaluate(&self, groups: Vec<Self::Group>) -> Result<ArrayRef>;
    /// Returns the bytes that the group has on the heap.
    fn heap_size(group: &Self::Group) -> usize;
}

/// The state column of every [`Aggregate`].
pub(super) fn saved() -> Vec<(&'static str, DataType)> {
    vec![("saved", DataType::LargeBinary)]
}

/// Appends numbers to a saved state.
pub(super) fn save_numbers(numbers: impl IntoIterator<Item = f64>, saved: &mut Vec<u8>) {
    saved.extend(numbers.into_iter().flat_map(f64::to_le_bytes));
}

/// Reads the numbers of a saved state.
pub(super) fn saved_numbers(saved: &[u8]) -> impl Iterator<Item = f64> {
    saved
        .as_chunks()
        .0
        .iter()
        .map(|bytes| f64::from_le_bytes(*bytes))
}

/// The states of all groups of an aggregation.
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

    fn change<T>(
        &mut self,
        group: usize,
        change: impl FnOnce(&A, &mut A::Group) -> T,
    ) -> Result<T> {
        let Some(state) = self.groups.get_mut(group) else {
            return exec_err!("{:?}: no group {group}", self.aggregate);
        };
        let before = A::heap_size(state);
        let changed = change(&self.aggregate, state);
        self.heap = (self.heap + A::heap_size(state)).saturating_sub(before);
        Ok(changed)
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
            if is_selected(opt_filter, row) {
                self.change(group, |aggregate, group| {
                    aggregate.update(group, &rows, row)
                })??;
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
        let [saved] = exactly(values)?;
        let saved = saved.as_binary::<i64>();
        for (row, &group) in group_indices.iter().enumerate() {
            self.change(group, |_, group| A::merge(group, saved.value(row)))?;
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let groups = self.take(emit_to);
        self.aggregate.evaluate(groups)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let groups = self.take(emit_to);
        let (mut column, mut saved) = (LargeBinaryBuilder::new(), Vec::new());
        for group in groups {
            saved.clear();
            A::save(&group, &mut saved);
            column.append_value(&saved);
        }
        Ok(vec![Arc::new(column.finish())])
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

/// Returns whether a row passes the `FILTER` of the call, if there is one.
pub(super) fn is_selected(filter: Option<&BooleanArray>, row: usize) -> bool {
    filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row))
}
