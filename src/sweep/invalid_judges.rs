//! Prepares the retry of rollouts whose judge gave no valid answer: they leave the table of rollouts, and their
//! attempts become failed ones.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, StringViewArray};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{Int64Type, SchemaRef};
use arrow::error::ArrowError;
use datafusion::error::DataFusionError;
use datafusion::prelude::{DataFrame, SessionContext};
use futures::TryStreamExt;

use crate::error::Error;
use crate::json::Object;
use crate::outcome::OK;
use crate::outcome::resume;
use crate::retry::FailureClass;
use crate::schema::{
    self, ANSWER, ATTEMPT, ATTEMPTS, ERROR, OUTCOME, RESULT, ROLLOUT_INDEX, ROLLOUTS, TASK_INDEX,
};
use crate::session::{self, Rows, row};
use crate::store::{PartWriter, RunStore, StoreError, Writer};

/// Rows of a batch: few, because answers can be large.
const BATCH_ROWS: usize = 64;

/// The answer, rewritten as that of a failed attempt, by task, rollout and attempt.
type Moved = HashMap<(i64, i64, i64), String>;

/// Turns rollouts whose judge gave no valid answer into failed attempts, and returns how many there were.
///
/// Each part is replaced by one of the same name, attempts first. If it stops in between, rollouts stay done, and the
/// next resume moves them.
///
/// # Errors
/// A part can't be read or written.
pub(super) async fn retry(run: &RunStore, writer: &Writer) -> Result<usize, Error> {
    let mut count = 0;
    for part in run.checked_parts(ROLLOUTS).await?.whole {
        let path = part.as_ref();
        let Some((_, file)) = path.rsplit_once('/') else {
            continue;
        };
        let mut moved = moved(run, &format!("{ROLLOUTS}/{file}")).await?;
        let attempts = format!("{ATTEMPTS}/{file}");
        if moved.is_empty() || !run.exists(&attempts).await? {
            continue;
        }
        // An answer can move only to its own attempt. If that is in another part, the answer stays.
        let attempted = attempted(run, &attempts).await?;
        moved.retain(|key, _| attempted.contains(key));
        if moved.is_empty() {
            continue;
        }
        count += moved.len();
        let failed = |batch: &RecordBatch| failed(batch, &moved);
        replace(run, writer, ATTEMPTS, file, schema::attempts(), failed).await?;
        replace(run, writer, ROLLOUTS, file, schema::rollouts(), |batch| {
            without(batch, &moved)
        })
        .await?;
    }
    Ok(count)
}

row! {
    struct Judged {
        task_index: i64,
        rollout_index: i64,
        attempt: i64,
        result: String,
    }
}

/// Returns task, rollout and attempt of each row in a part of attempts.
async fn attempted(run: &RunStore, name: &str) -> Result<HashSet<(i64, i64, i64)>, Error> {
    let rows = part(run, name, &schema::attempts())?;
    let rows = rows.select_columns(&[TASK_INDEX, ROLLOUT_INDEX, ATTEMPT])?;
    let mut attempted = HashSet::new();
    for batch in rows.collect().await? {
        attempted.extend(keys(&batch));
    }
    Ok(attempted)
}

/// Returns the rollouts of a part whose judge gave no valid answer.
async fn moved(run: &RunStore, name: &str) -> Result<Moved, Error> {
    let rows = part(run, name, &schema::rollouts())?;
    let rows = rows.select_columns(&[TASK_INDEX, ROLLOUT_INDEX, ATTEMPT, RESULT])?;
    let mut rows = Rows::start(rows, Judged::rows).await?;
    let mut moved = Moved::new();
    while let Some(row) = rows.next().await? {
        let answer = Object::parse(&row.result).unwrap_or_default();
        if resume::is_judged_invalidly(&answer) {
            let key = (row.task_index, row.rollout_index, row.attempt);
            moved.insert(key, resume::migrated(&answer));
        }
    }
    Ok(moved)
}

/// The rows of a part, in their order, few at a time.
fn part(run: &RunStore, name: &str, schema: &SchemaRef) -> Result<DataFrame, Error> {
    let config = session::config()
        .with_target_partitions(1)
        .with_batch_size(BATCH_ROWS);
    let session = SessionContext::new_with_config(config);
    Ok(session::part(&session, run, name, schema)?)
}

async fn replace(
    run: &RunStore,
    holder: &Writer,
    table: &'static str,
    file: &str,
    schema: SchemaRef,
    change: impl Fn(&RecordBatch) -> Result<RecordBatch, ArrowError>,
) -> Result<(), Error> {
    let name = format!("{table}/{file}");
    let mut rows = part(run, &name, &schema)?.execute_stream().await?;
    let mut writer = PartWriter::new(run, table, &name, schema)?;
    let written = async {
        while let Some(batch) = rows.try_next().await? {
            let batch = change(&batch).map_err(DataFusionError::from)?;
            writer.write(&batch).await?;
        }
        Ok::<_, Error>(())
    };
    match written.await {
        Ok(()) => {
            let _permit = holder.permit().await;
            writer
                .finish()
                .await
                .map(|_| ())
                .map_err(StoreError::of_output)
        }
        Err(error) => {
            writer.abandon().await;
            Err(error)
        }
    }
}

fn keys(batch: &RecordBatch) -> Vec<(i64, i64, i64)> {
    let integers = |name: &str| {
        let column = batch.column_by_name(name);
        let column = column.and_then(|column| column.as_primitive_opt::<Int64Type>());
        column.map_or_else(Vec::new, |column| column.values().to_vec())
    };
    let keys = integers(TASK_INDEX)
        .into_iter()
        .zip(integers(ROLLOUT_INDEX));
    let keys = keys.zip(integers(ATTEMPT));
    keys.map(|((task, rollout), attempt)| (task, rollout, attempt))
        .collect()
}

fn without(batch: &RecordBatch, moved: &Moved) -> Result<RecordBatch, ArrowError> {
    let kept = keys(batch).into_iter().map(|key| !moved.contains_key(&key));
    let kept: BooleanArray = kept.map(Some).collect();
    filter_record_batch(batch, &kept)
}

/// Returns the attempts of a batch; those whose answers move become failed ones.
fn failed(batch: &RecordBatch, moved: &Moved) -> Result<RecordBatch, ArrowError> {
    let outcomes = batch.schema().index_of(OUTCOME)?;
    let outcomes = batch.column(outcomes).as_string_view().clone();
    let keys = keys(batch);
    let answer = |row: usize| {
        let is_ok = outcomes.value(row) == OK;
        keys.get(row)
            .filter(|_| is_ok)
            .and_then(|key| moved.get(key))
    };
    let columns = batch.schema_ref().fields().iter().zip(batch.columns());
    let columns = columns.map(|(field, column)| -> ArrayRef {
        let texts = |of: &dyn Fn(&str) -> String| -> ArrayRef {
            let before = column.as_string_view();
            let rows = (0..before.len()).map(|row| match answer(row) {
                Some(answer) => Some(of(answer)),
                None => before.is_valid(row).then(|| before.value(row).to_owned()),
            });
            Arc::new(rows.collect::<StringViewArray>())
        };
        match field.name().as_str() {
            OUTCOME => texts(&|_| FailureClass::AgentFlagged.name().to_owned()),
            ERROR => {
                texts(&|_| "the judge gave no valid answer (invalid_judge_response)".to_owned())
            }
            ANSWER => texts(&str::to_owned),
            _ => Arc::clone(column),
        }
    });
    RecordBatch::try_new(batch.schema(), columns.collect())
}
