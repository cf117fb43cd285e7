//! Orders tasks by the time that their rollouts took in earlier attempts: [`longest_first`].

use std::collections::{BTreeMap, HashMap};
use std::future::ready;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, UInt64Array};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{StreamExt, TryStreamExt, stream};

use crate::schema::{FIRST_ROLLOUT_INDEX, NUM_REPEATS, TASK_INDEX};

/// Seconds that rollouts took in earlier attempts, by task and rollout. It is passed as an extension of the session's
/// configuration.
#[derive(Debug, Default)]
pub(super) struct KnownSeconds(pub(super) HashMap<(i64, i64), f64>);

/// Reads the tasks once to find the rollouts whose seconds are known, once for each batch of those, and once for the
/// rest. It holds the requests of a batch, and 24 bytes for every other known rollout.
pub(super) fn longest_first(
    input: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
) -> Result<SendableRecordBatchStream> {
    let known = context.session_config().get_extension::<KnownSeconds>();
    let known = known.unwrap_or_default();
    if known.0.is_empty() {
        return input.execute(0, context);
    }
    let schema = input.schema();
    let batch_rows = context.session_config().batch_size();
    let rest = Arc::new(Passes {
        input,
        context,
        known,
    });
    let tasks = Arc::clone(&rest);
    let first = async move {
        let places = tasks.places().await?;
        let next = move |(tasks, mut places): (Arc<Passes>, Vec<Place>)| async move {
            if places.is_empty() {
                return Ok(None);
            }
            let next = places.split_off(places.len().saturating_sub(batch_rows));
            let batch = tasks.known_rollouts(&next).await?;
            Ok(Some((batch, (tasks, places))))
        };
        Ok::<_, DataFusionError>(stream::try_unfold((tasks, places), next))
    };
    let rest = async move {
        let rows = rest.pass()?;
        Ok::<_, DataFusionError>(rows.map(move |batch| rest.without_known(&batch?)))
    };
    let rows = stream::once(first)
        .try_flatten()
        .chain(stream::once(rest).try_flatten())
        .try_filter(|batch| ready(batch.num_rows() > 0));
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
}

/// Where a rollout of known seconds stands in the tasks.
#[derive(Debug, Clone, Copy)]
struct Place {
    seconds: f64,
    /// Number of its task's row.
    row: u64,
    rollout_index: i64,
}

/// Reads the tasks from the start, as often as needed.
struct Passes {
    input: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    known: Arc<KnownSeconds>,
}

impl Passes {
    fn pass(&self) -> Result<SendableRecordBatchStream> {
        let input = reset_plan_states(Arc::clone(&self.input))?;
        input.execute(0, Arc::clone(&self.context))
    }

    fn seconds(&self, task_index: i64, rollout_index: i64) -> Option<f64> {
        self.known.0.get(&(task_index, rollout_index)).copied()
    }

    /// Returns the known rollouts, the longest last; of equally long ones, the first in the input last.
    async fn places(&self) -> Result<Vec<Place>> {
        let mut places = Vec::new();
        let (mut rows, mut before) = (self.pass()?, 0);
        while let Some(batch) = rows.next().await.transpose()? {
            let tasks = Tasks::of(&batch)?;
            for row in 0..batch.num_rows() {
                let (task_index, rollouts) = tasks.row(row);
                places.extend(rollouts.filter_map(|rollout_index| {
                    Some(Place {
                        seconds: self.seconds(task_index, rollout_index)?,
                        row: before + row as u64,
                        rollout_index,
                    })
                }));
            }
            before += batch.num_rows() as u64;
        }
        places.reverse();
        places.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        Ok(places)
    }

    /// Returns the rollouts at these places, in reverse order.
    async fn known_rollouts(&self, places: &[Place]) -> Result<RecordBatch> {
        let mut wanted: BTreeMap<u64, Vec<(usize, i64)>> = BTreeMap::new();
        for (order, place) in places.iter().rev().enumerate() {
            let of_row = wanted.entry(place.row).or_default();
            of_row.push((order, place.rollout_index));
        }
        let (mut rows, mut before) = (self.pass()?, 0);
        let (mut pieces, mut found) = (Vec::new(), Vec::new());
        while found.len() < places.len() {
            let Some(batch) = rows.next().await.transpose()? else {
                return internal_err!("the tasks changed while they were read");
            };
            let end = before + batch.num_rows() as u64;
            let (mut indices, mut rollouts) = (Vec::new(), Vec::new());
            for (row, of_row) in wanted.range(before..end) {
                for (order, rollout_index) in of_row {
                    indices.push(row - before);
                    rollouts.push(*rollout_index);
                    found.push(*order);
                }
            }
            if !indices.is_empty() {
                let piece = take_record_batch(&batch, &UInt64Array::from(indices))?;
                let counts = vec![1; rollouts.len()];
                pieces.push(with_rollouts(&compacted(&piece)?, rollouts, counts)?);
            }
            before = end;
        }
        let mut order: Vec<u64> = (0..found.len() as u64).collect();
        order.sort_by_key(|at| found.get(*at as usize).copied());
        let all = concat_batches(&self.input.schema(), &pieces)?;
        Ok(take_record_batch(&all, &UInt64Array::from(order))?)
    }

    /// Returns the rollouts of a batch without known seconds: each range between known ones becomes a row.
    fn without_known(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let tasks = Tasks::of(batch)?;
        let (mut indices, mut firsts, mut counts) = (Vec::new(), Vec::new(), Vec::new());
        let mut add = |row: usize, first: i64, end: i64| {
            if first < end {
                indices.push(row as u64);
                firsts.push(first);
                counts.push(end - first);
            }
        };
        for row in 0..batch.num_rows() {
            let (task_index, rollouts) = tasks.row(row);
            let (mut first, end) = (rollouts.start, rollouts.end);
            for rollout_index in rollouts {
                if self.seconds(task_index, rollout_index).is_some() {
                    add(row, first, rollout_index);
                    first = rollout_index + 1;
                }
            }
            add(row, first, end);
        }
        let rows = take_record_batch(batch, &UInt64Array::from(indices))?;
        with_rollouts(&rows, firsts, counts)
    }
}

/// The columns of a batch of tasks that say which rollouts each row asks for.
pub(super) struct Tasks<'a> {
    indices: &'a Int64Array,
    firsts: &'a Int64Array,
    counts: &'a Int64Array,
}

impl<'a> Tasks<'a> {
    pub(super) fn of(batch: &'a RecordBatch) -> Result<Self> {
        let integers = |name: &str| {
            let column = batch.column_by_name(name);
            let column = column.and_then(|column| column.as_primitive_opt::<Int64Type>());
            column.ok_or_else(|| exec_datafusion_err!("the tasks have no integers '{name}'"))
        };
        Ok(Self {
            indices: integers(TASK_INDEX)?,
            firsts: integers(FIRST_ROLLOUT_INDEX)?,
            counts: integers(NUM_REPEATS)?,
        })
    }

    /// Returns a row's task, and the range of its rollouts.
    pub(super) fn row(&self, row: usize) -> (i64, std::ops::Range<i64>) {
        let first = self.firsts.value(row);
        let end = first.saturating_add(self.counts.value(row));
        (self.indices.value(row), first..end)
    }
}

/// Copies the texts of rows, so that they do not keep those of the whole batch, which can be a hundred times larger.
fn compacted(batch: &RecordBatch) -> Result<RecordBatch> {
    let columns = batch.columns().iter().map(|column| -> ArrayRef {
        match column.data_type() {
            DataType::Utf8View => Arc::new(column.as_string_view().gc()),
            _ => Arc::clone(column),
        }
    });
    Ok(RecordBatch::try_new(batch.schema(), columns.collect())?)
}

/// Returns the rows of a batch of tasks with new ranges of rollouts.
pub(super) fn with_rollouts(
    batch: &RecordBatch,
    firsts: Vec<i64>,
    counts: Vec<i64>,
) -> Result<RecordBatch> {
    let mut columns = batch.columns().to_vec();
    for (name, values) in [(FIRST_ROLLOUT_INDEX, firsts), (NUM_REPEATS, counts)] {
        if let Some(column) = columns.get_mut(batch.schema().index_of(name)?) {
            *column = Arc::new(Int64Array::from(values));
        }
    }
    Ok(RecordBatch::try_new(batch.schema(), columns)?)
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::super::task_order::TaskOrder;
    use super::*;
    use crate::operator::Step;

    #[tokio::test]
    async fn known_rollouts_come_by_their_time_and_the_rest_as_it_is() {
        let column = |values: Vec<i64>| -> ArrayRef { Arc::new(Int64Array::from(values)) };
        let batch = RecordBatch::try_from_iter([
            (TASK_INDEX, column(vec![7, 5, 6, 7])),
            (FIRST_ROLLOUT_INDEX, column(vec![0, 0, 0, 4])),
            (NUM_REPEATS, column(vec![4, 1, 2, 1])),
        ])
        .unwrap();
        let known = [((7, 1), 2.0), ((6, 1), 9.0), ((5, 0), 2.0), ((7, 4), 3.0)];
        let known = Arc::new(KnownSeconds(HashMap::from(known)));
        for batch_rows in [1, 3, 100] {
            let config = SessionConfig::new().with_extension(Arc::clone(&known));
            let config = config.with_batch_size(batch_rows).with_target_partitions(1);
            let session = SessionContext::new_with_config(config);
            let tasks = session.read_batch(batch.clone()).unwrap();
            let plan = tasks.create_physical_plan().await.unwrap();
            let plan = TaskOrder::LongestFirst.exec(plan).unwrap();
            let batches = datafusion::physical_plan::collect(plan, session.task_ctx());
            let mut found = Vec::new();
            for batch in batches.await.unwrap() {
                let tasks = Tasks::of(&batch).unwrap();
                found.extend((0..batch.num_rows()).map(|row| tasks.row(row)));
            }
            let expected = [
                (6, 1..2),
                (7, 4..5),
                (7, 1..2),
                (5, 0..1),
                (7, 0..1),
                (7, 2..4),
                (6, 0..1),
            ];
            assert_eq!(found, expected, "{batch_rows}");
        }
    }
}
