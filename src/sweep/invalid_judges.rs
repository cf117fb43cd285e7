//! Prepares the retry of rollouts whose judge gave no valid answer: they leave the table of rollouts, and their
//! attempts become failed ones.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch, StringViewArray};
use arrow::compute::filter_record_batch;
use arrow::datatypes::SchemaRef;
use datafusion::common::Result as QueryResult;
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
use crate::session::{self, Column, Rows, row};
use crate::store::{PartWriter, RunStore, StoreError, Writer};

/// Rows of a batch: few, because answers can be large.
const BATCH_ROWS: usize = 64;

row! {
    #[derive(PartialEq, Eq, Hash)]
    struct Key {
        task_index: i64,
        rollout_index: i64,
        attempt: i64,
    }
}

/// The answers that move, each rewritten as that of a failed attempt.
type Moved = HashMap<Key, String>;

/// Turns rollouts whose judge gave no valid answer into failed attempts, and returns how many there were.
///
/// Each part is replaced by one of the same name, attempts first. If it stops in between, rollouts stay done, and the
/// next resume moves them.
///
/// # Errors
/// A part can't be read or written.
pub(super) async fn retry(run: &RunStore, writer: &Writer) -> Result<usize, Error> {
    let mut count = 0;
    for part in run.checked_parts_for(ROLLOUTS, writer.scope()).await?.whole {
        let path = part.location.as_ref();
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

/// Returns the keys of a part of attempts.
async fn attempted(run: &RunStore, name: &str) -> Result<HashSet<Key>, Error> {
    let rows = part(run, name, &schema::attempts())?;
    let rows = rows.select_columns(&[TASK_INDEX, ROLLOUT_INDEX, ATTEMPT])?;
    let keys = Rows::start(rows, Key::rows).await?.collect().await?;
    Ok(keys.into_iter().collect())
}

/// Returns the rollouts of a part whose judge gave no valid answer.
async fn moved(run: &RunStore, name: &str) -> Result<Moved, Error> {
    let rows = part(run, name, &schema::rollouts())?;
    let rows = rows.select_columns(&[TASK_INDEX, ROLLOUT_INDEX, ATTEMPT, RESULT])?;
    let mut batches = rows.execute_stream().await?;
    let mut moved = Moved::new();
    while let Some(batch) = batches.try_next().await? {
        let answers = String::read(&batch, RESULT)?;
        for (key, answer) in Key::rows(&batch)?.into_iter().zip(answers) {
            let answer = Object::parse(&answer).unwrap_or_default();
            if resume::is_judged_invalidly(&answer) {
                moved.insert(key, resume::migrated(&answer));
            }
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
    change: impl Fn(&RecordBatch) -> QueryResult<RecordBatch>,
) -> Result<(), Error> {
    let name = format!("{table}/{file}");
    let mut rows = part(run, &name, &schema)?.execute_stream().await?;
    let mut writer = PartWriter::new(run, table, &name, schema)?;
    let written = async {
        while let Some(batch) = rows.try_next().await? {
            writer.write(&change(&batch)?).await?;
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

fn without(batch: &RecordBatch, moved: &Moved) -> QueryResult<RecordBatch> {
    let keys = Key::rows(batch)?;
    let kept: Vec<bool> = keys.iter().map(|key| !moved.contains_key(key)).collect();
    Ok(filter_record_batch(batch, &kept.into())?)
}

/// Returns the attempts of a batch; those whose answers move become failed ones.
fn failed(batch: &RecordBatch, moved: &Moved) -> QueryResult<RecordBatch> {
    let outcomes = String::read(batch, OUTCOME)?;
    let keys = Key::rows(batch)?.into_iter().zip(outcomes);
    let answers = keys.map(|(key, outcome)| moved.get(&key).filter(|_| outcome == OK));
    let answers: Vec<Option<&String>> = answers.collect();
    let columns = batch.schema_ref().fields().iter().zip(batch.columns());
    let columns = columns.map(|(field, column)| -> ArrayRef {
        let texts = |of: &dyn Fn(&str) -> String| -> ArrayRef {
            let rows = column.as_string_view().iter().zip(&answers);
            let rows = rows.map(|(before, answer)| match answer {
                Some(answer) => Some(of(answer)),
                None => before.map(str::to_owned),
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
    Ok(RecordBatch::try_new(batch.schema(), columns.collect())?)
}
