//! [`TaskOrder`]: dispatches tasks in another order than that of the input.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::{EmissionType, SchedulingType, reset_plan_states};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{Distribution, ExecutionPlan, Partitioning, PlanProperties};
use futures::{StreamExt, stream};

use super::longest_first::{Tasks, longest_first, with_rollouts};
use crate::operator::{self, Operator, OperatorExec, Step};

/// Reads its input, the table of tasks, several times, and returns it in another order.
///
/// A sort of the rollouts would do the same, but would hold the request of every rollout, in memory or in temporary
/// files, before the first is sent. This holds the requests of one batch.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub(super) enum TaskOrder {
    /// First all tasks that have a rollout 0, then all that have a rollout 1, and so on, as tasks of that one rollout.
    /// It reads the tasks once for each round: no more rows than it sends, if all tasks have equally many repeats.
    Rounds,
    /// First the rollouts whose time is known from earlier attempts, as tasks of one rollout each, the longest first; then
    /// all others, in their order. See [`longest_first`].
    LongestFirst,
}

impl fmt::Display for TaskOrder {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Rounds => "by rollout_index",
            Self::LongestFirst => "by earlier attempts",
        })
    }
}

impl Step for TaskOrder {
    fn name(&self) -> &'static str {
        match self {
            Self::Rounds => "Rounds",
            Self::LongestFirst => "LongestFirst",
        }
    }

    fn exec(&self, input: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(OperatorExec::new(self.clone(), input)))
    }
}

impl Operator for TaskOrder {
    fn properties(&self, input: &Arc<dyn ExecutionPlan>) -> PlanProperties {
        let partitioning = Partitioning::UnknownPartitioning(1);
        operator::bounded(input.schema(), partitioning, EmissionType::Incremental)
            .with_scheduling_type(SchedulingType::NonCooperative)
    }

    fn distribution(&self) -> Distribution {
        Distribution::SinglePartition
    }

    fn execute(
        &self,
        input: &Arc<dyn ExecutionPlan>,
        _: usize,
        context: Arc<TaskContext>,
        _: &ExecutionPlanMetricsSet,
    ) -> Result<SendableRecordBatchStream> {
        match self {
            Self::Rounds => Ok(rounds(Arc::clone(input), context)),
            Self::LongestFirst => longest_first(Arc::clone(input), context),
        }
    }
}

fn rounds(input: Arc<dyn ExecutionPlan>, context: Arc<TaskContext>) -> SendableRecordBatchStream {
    let schema = input.schema();
    let pass = Pass {
        input,
        context,
        rows: None,
        round: 0,
        end: 0,
    };
    let rows = stream::try_unfold(pass, Pass::next);
    Box::pin(RecordBatchStreamAdapter::new(schema, rows))
}

/// Reads the tasks once for each round.
struct Pass {
    input: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    rows: Option<SendableRecordBatchStream>,
    round: i64,
    /// No task so far has a rollout of this index or a higher one.
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

/// Returns the tasks that have rollout `round`, as tasks of that one alone, and the end of the last range of rollouts.
fn of_round(batch: &RecordBatch, round: i64) -> Result<(RecordBatch, i64)> {
    let tasks = Tasks::of(batch)?;
    let ranges: Vec<Range<i64>> = (0..batch.num_rows()).map(|row| tasks.row(row).1).collect();
    let end = ranges
        .iter()
        .map(|range| range.end)
        .max()
        .unwrap_or_default();
    let chosen = ranges.iter().map(|range| range.contains(&round));
    let chosen: BooleanArray = chosen.map(Some).collect();
    let batch = filter_record_batch(batch, &chosen)?;
    let same = |value: i64| vec![value; batch.num_rows()];
    Ok((with_rollouts(&batch, same(round), same(1))?, end))
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, Int64Array};
    use arrow::datatypes::Int64Type;
    use datafusion::prelude::SessionContext;

    use super::*;
    use crate::schema::{FIRST_ROLLOUT_INDEX, NUM_REPEATS};

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
        let plan = TaskOrder::Rounds
            .exec(tasks.create_physical_plan().await.unwrap())
            .unwrap();
        for _ in 0..2 {
            let batches = datafusion::physical_plan::collect(Arc::clone(&plan), session.task_ctx());
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
