//! Rollouts of runs that count as zero though they gave no score, by the rules that files of NeMo Gym have:
//! [`ZeroRows`] is told what a session's tables hold.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::exec_datafusion_err;
use datafusion::dataframe::DataFrame;
use datafusion::error::DataFusionError;
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;

use crate::call::RolloutKey;
use crate::config::{ConfigError, Settings};
use crate::error::Error;
use crate::export::failed_attempts;
use crate::gym::GymRules;
use crate::import::{RowKey, ZeroRows, Zeros};
use crate::json::{Object, quote};
use crate::outcome::resume::FAILURE_CLASS;
use crate::outcome::{Answer, Outcome, OutcomeBatchBuilder, Times, Verdict, rollouts_of};
use crate::retry::gym_class;
use crate::schema::{ROLLOUTS, TASKS};

/// Which rollouts count as zero in the metrics at the end of a sweep.
///
/// # Errors
/// Some do, and the rules know nothing of that.
pub(crate) fn of_settings(settings: &Settings, rules: &GymRules) -> Result<Zeros, ConfigError> {
    let zeros = Zeros {
        failure_classes: settings.count_failure_classes_as_zero.clone(),
        missing: settings.count_missing_rollouts_as_zero,
    };
    let key = match zeros.missing {
        true => "count_missing_rollouts_as_zero",
        false => "count_failure_classes_as_zero",
    };
    match zeros.any() && !rules.servers {
        true => Err(ConfigError::Gym { key }),
        false => Ok(zeros),
    }
}

/// What is to be known of the rollouts of a session.
pub(crate) struct Found {
    /// Rollouts that count as zero.
    pub(crate) num_zeros: usize,
    /// Rollouts that failed, by the class of their last failure.
    pub(crate) classes: BTreeMap<String, u64>,
    /// What people are told of it.
    pub(crate) notes: Vec<String>,
}

/// Adds to the rollouts of a session those that count as zero.
///
/// # Errors
/// The tables can't be read.
pub(crate) async fn add(
    session: &SessionContext,
    zeros: &Zeros,
    rules: &GymRules,
) -> Result<Found, Error> {
    let mut rows = ZeroRows::default();
    if zeros.any() {
        done(session, &mut rows).await?;
    }
    failed(session, &mut rows, zeros, rules).await?;
    rows.count_failures(0);
    if zeros.any() {
        planned(session, &mut rows, zeros).await?;
    }
    let mut batch = OutcomeBatchBuilder::new();
    for ((agent_name, key), text) in rows.take(0) {
        let answer = Answer::parse(text).map_err(Error::defect)?;
        let outcome = outcome(&agent_name, key, answer);
        batch.append(outcome).map_err(DataFusionError::from)?;
    }
    let num_zeros = batch.len();
    if num_zeros > 0 {
        let batch = batch.finish().and_then(|batch| rollouts_of(&batch));
        let batch = session.read_batch(batch.map_err(DataFusionError::from)?)?;
        let all = session.table(ROLLOUTS).await?.union_by_name(batch)?;
        session.deregister_table(ROLLOUTS)?;
        session.register_table(ROLLOUTS, all.into_view())?;
    }
    Ok(Found {
        num_zeros,
        classes: rows.failure_classes(),
        notes: rows.notes(),
    })
}

async fn done(session: &SessionContext, rows: &mut ZeroRows) -> Result<(), Error> {
    let columns = ["agent_name", "task_index", "rollout_index", "result"];
    let rollouts = session.table(ROLLOUTS).await?.select_columns(&columns)?;
    each(rollouts, |batch, row, agent, key| {
        let answer = text(batch, "result", row)?.unwrap_or_default();
        rows.done(0, &agent, key, &Object::parse(&answer).unwrap_or_default());
        Ok(())
    })
    .await
}

async fn failed(
    session: &SessionContext,
    rows: &mut ZeroRows,
    zeros: &Zeros,
    rules: &GymRules,
) -> Result<(), Error> {
    let attempts = failed_attempts(session, rules).await?;
    each(attempts, |batch, row, agent, key| {
        let attempt = integer(batch, "attempt", row)?.unwrap_or_default();
        let is_answered = text(batch, "outcome", row)?.as_deref() == Some("agent_flagged");
        let answer = match text(batch, "answer", row)?.filter(|_| is_answered) {
            Some(answer) => answer,
            None => {
                let class = gym_class(integer(batch, "http_status", row)?);
                format!("{{\"{FAILURE_CLASS}\":{}}}", quote(class))
            }
        };
        rows.failed(0, (agent, key), attempt.unsigned_abs(), &answer, zeros);
        Ok(())
    })
    .await
}

async fn planned(
    session: &SessionContext,
    rows: &mut ZeroRows,
    zeros: &Zeros,
) -> Result<(), Error> {
    let columns = [
        "agent_name",
        "task_index",
        "first_rollout_index",
        "num_repeats",
        "request",
    ];
    let tasks = session.table(TASKS).await?.select_columns(&columns)?;
    each(tasks, |batch, row, agent, task| {
        let request = text(batch, "request", row)?.unwrap_or_default();
        let request = Object::parse(&request).unwrap_or_default();
        let first = integer(batch, "first_rollout_index", row)?.unwrap_or_default();
        let count = integer(batch, "num_repeats", row)?.unwrap_or_default();
        for rollout_index in first..first.saturating_add(count) {
            let key = RowKey {
                rollout_index,
                ..task
            };
            rows.planned(0, (agent.clone(), key), &request, zeros);
        }
        Ok(())
    })
    .await
}

/// Calls `take` for every row, with its place, its agent and its key.
async fn each(
    rows: DataFrame,
    mut take: impl FnMut(&RecordBatch, usize, String, RowKey) -> Result<(), DataFusionError>,
) -> Result<(), Error> {
    let mut batches = rows.execute_stream().await?;
    while let Some(batch) = batches.try_next().await? {
        for row in 0..batch.num_rows() {
            let key = RowKey {
                task_index: integer(&batch, "task_index", row)?.unwrap_or_default(),
                rollout_index: match batch.column_by_name("rollout_index") {
                    Some(_) => integer(&batch, "rollout_index", row)?.unwrap_or_default(),
                    None => 0,
                },
            };
            let agent = text(&batch, "agent_name", row)?.unwrap_or_default();
            take(&batch, row, agent, key)?;
        }
    }
    Ok(())
}

fn column(
    batch: &RecordBatch,
    name: &str,
    row: usize,
    to: &DataType,
) -> Result<arrow::array::ArrayRef, DataFusionError> {
    let column = batch.column_by_name(name);
    let column = column.ok_or_else(|| exec_datafusion_err!("there is no column '{name}'"))?;
    Ok(arrow::compute::cast(&column.slice(row, 1), to)?)
}

fn integer(batch: &RecordBatch, name: &str, row: usize) -> Result<Option<i64>, DataFusionError> {
    let value = column(batch, name, row, &DataType::Int64)?;
    let value = value.as_primitive::<Int64Type>();
    Ok(value.is_valid(0).then(|| value.value(0)))
}

fn text(batch: &RecordBatch, name: &str, row: usize) -> Result<Option<String>, DataFusionError> {
    let value = column(batch, name, row, &DataType::Utf8View)?;
    let value = value.as_string_view();
    Ok(value.is_valid(0).then(|| value.value(0).to_owned()))
}

fn outcome(agent_name: &str, key: RowKey, answer: Answer) -> Outcome {
    let key = RolloutKey::new(key.task_index, key.rollout_index, 0);
    Outcome {
        times: Times {
            server: Some(std::time::Duration::ZERO),
            ..Times::default()
        },
        ..Outcome::new(key, agent_name, UNIX_EPOCH, Verdict::Ok(answer))
    }
}
