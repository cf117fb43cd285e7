//! Tasks round by round, for interleaved repeats: [`Rounds`] in a logical plan, [`RoundsExec`] in a physical one.

use std::fmt;
use std::sync::Arc;

use arrow::array::{AsArray, BooleanArray, Int64Array, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::Int64Type;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DFSchemaRef, Result, exec_datafusion_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{
    Boundedness, ChildrenPropertiesMode, EmissionType, SchedulingType, reset_plan_states,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, Partitioning, PlanProperties,
    ReplaceChildrenOptions,
};
use futures::{StreamExt, stream};

use crate::operator::Step;
use crate::schema::{FIRST_ROLLOUT_INDEX, NUM_REPEATS};

/// Gives the tasks once for each rollout index: first all that have a rollout 0, then all that have a rollout 1, and so
/// on, as tasks of that one rollout.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub(super) struct Rounds;

impl fmt::Display for Rounds {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "by rollout_index")
    }
}

impl Step for Rounds {
    const NAME: &'static str = "Rounds";

    fn schema(&self, input: &LogicalPlan) -> Result<DFSchemaRef> {
        Ok(Arc::clone(input.schema()))
    }

    fn exec(&self, input: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(RoundsExec::new(input)))
    }
}

/// Reads its input, the table of tasks, once for each round.
///
/// A sort of the rollouts would do the same, but would hold the request of every rollout, in memory or in temporary
/// files, before the first is sent. This holds a batch. What it costs is a pass over the tasks for each round, which is
/// no more than is sent in it if all tasks have as many repeats.
#[derive(Debug)]
pub(super) struct RoundsExec {
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl RoundsExec {
    fn new(input: Arc<dyn ExecutionPlan>) -> Self {
        let properties = Arc::new(Self::compute_properties(&input));
        Self { input, properties }
    }

    fn compute_properties(input: &Arc<dyn ExecutionPlan>) -> PlanProperties {
        PlanProperties::new(
            EquivalenceProperties::new(input.schema()),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::NonCooperative)
    }
}

impl DisplayAs for RoundsExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "RoundsExec: by rollout_index")
            }
            DisplayFormatType::TreeRender => write!(f, "by rollout_index"),
        }
    }
}

impl ExecutionPlan for RoundsExec {
    fn name(&self) -> &'static str {
        "RoundsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        vec![Distribution::SinglePartition]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match (children.pop(), children.pop()) {
            (Some(input), None) => Ok(Arc::new(Self::new(input))),
            _ => internal_err!("RoundsExec has one input"),
        }
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        self.replace_children(children, options)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("RoundsExec has one partition");
        }
        let pass = Pass {
            input: Arc::clone(&self.input),
            context,
            rows: None,
            round: 0,
            end: 0,
        };
        let rows = stream::try_unfold(pass, Pass::next);
        let rows = RecordBatchStreamAdapter::new(self.schema(), rows);
        Ok(Box::pin(rows))
    }
}

/// A pass over the tasks.
struct Pass {
    input: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    rows: Option<SendableRecordBatchStream>,
    round: i64,
    /// No task that was seen has rollouts from here on.
    end: i64,
}

impl Pass {
    async fn next(mut self) -> Result<Option<(RecordBatch, Self)>> {
        loop {
            let rows = match &mut self.rows {
                Some(rows) => rows,
                None if self.round > 0 && self.round >= self.end => return Ok(None),
                None => {
                    let input = reset_plan_states(Arc::clone(&self.input))?;
                    let rows = input.execute(0, Arc::clone(&self.context))?;
                    self.rows.insert(rows)
                }
            };
            let Some(batch) = rows.next().await.transpose()? else {
                self.rows = None;
                self.round += 1;
                continue;
            };
            let (batch, end) = of_round(&batch, self.round)?;
            self.end = self.end.max(end);
            if batch.num_rows() > 0 {
                return Ok(Some((batch, self)));
            }
        }
    }
}

/// The tasks that have a rollout of this index, as tasks of that one; and the index at which the last of all ends.
fn of_round(batch: &RecordBatch, round: i64) -> Result<(RecordBatch, i64)> {
    let place = |name: &str| batch.schema().index_of(name);
    let (first, count) = (place(FIRST_ROLLOUT_INDEX)?, place(NUM_REPEATS)?);
    let integers = |place: usize| {
        let column = batch.column(place).as_primitive_opt::<Int64Type>();
        column.ok_or_else(|| exec_datafusion_err!("rollout indices are not integers"))
    };
    let firsts = integers(first)?.values().iter();
    let ranges: Vec<(i64, i64)> = firsts
        .zip(integers(count)?.values())
        .map(|(first, count)| (*first, first.saturating_add(*count)))
        .collect();
    let end = ranges.iter().map(|(_, end)| *end).max().unwrap_or_default();
    let chosen = ranges
        .iter()
        .map(|(first, end)| (*first..*end).contains(&round));
    let chosen: BooleanArray = chosen.map(Some).collect();
    let batch = filter_record_batch(batch, &chosen)?;
    let same = |value: i64| Arc::new(Int64Array::from(vec![value; batch.num_rows()]));
    let mut columns = batch.columns().to_vec();
    for (place, value) in [(first, round), (count, 1)] {
        if let Some(column) = columns.get_mut(place) {
            *column = same(value);
        }
    }
    Ok((RecordBatch::try_new(batch.schema(), columns)?, end))
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::SessionContext;

    use super::*;

    #[tokio::test]
    async fn every_round_has_the_tasks_that_have_such_a_rollout_in_their_order() {
        let column =
            |values: Vec<i64>| -> arrow::array::ArrayRef { Arc::new(Int64Array::from(values)) };
        let batch = RecordBatch::try_from_iter([
            ("task_index", column(vec![7, 5, 7, 6])),
            (FIRST_ROLLOUT_INDEX, column(vec![0, 0, 3, 0])),
            (NUM_REPEATS, column(vec![3, 1, 1, 2])),
        ])
        .unwrap();
        let session = SessionContext::new();
        let tasks = session.read_batch(batch).unwrap();
        let plan = Arc::new(RoundsExec::new(tasks.create_physical_plan().await.unwrap()));
        for _ in 0..2 {
            let batches =
                datafusion::physical_plan::collect(Arc::clone(&plan) as _, session.task_ctx());
            let mut found = Vec::new();
            for batch in batches.await.unwrap() {
                let column = |place: usize| {
                    batch
                        .column(place)
                        .as_primitive::<Int64Type>()
                        .values()
                        .to_vec()
                };
                assert!(column(2).iter().all(|count| *count == 1));
                found.extend(column(1).into_iter().zip(column(0)));
            }
            let expected = [(0, 7), (0, 5), (0, 6), (1, 7), (1, 6), (2, 7), (3, 7)];
            assert_eq!(found, expected);
        }
    }
}
