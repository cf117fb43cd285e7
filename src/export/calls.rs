//! [`CallLog`]: the calls of models that a run made itself, by attempt.

use std::io;

use arrow::array::{Array, AsArray, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use arrow::record_batch::RecordBatch;
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;
use serde::{Deserialize, Serialize};

use super::ExportError;
use super::stamps::{at, integers, texts};
use super::target::{Key, SortedTexts, Waiting};

const CALLS: &str = include_str!("../../queries/export/calls.sql");

/// A call of a model within an attempt that rollstream runs itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ModelCall {
    call: i64,
    retry: i64,
    pub name: String,
    outcome: String,
    pub http_status: Option<i64>,
    started_at: i64,
    finished_at: Option<i64>,
    pub latency_ms: Option<f64>,
    pub input_tokens: Option<i64>,
    pub output_tokens: Option<i64>,
}

impl ModelCall {
    /// The identity that was sent with it.
    pub(super) fn id(&self, (task, rollout, attempt): Key) -> String {
        let first = self.call - self.retry;
        let id = format!("{task}-{rollout}-a{attempt}-c{first}");
        if self.retry > 0 {
            format!("{id}-t{}", self.retry)
        } else {
            id
        }
    }

    pub(super) fn is_ok(&self) -> bool {
        self.outcome == "ok"
    }

    /// Why it failed, if it did.
    pub(super) fn error(&self) -> Option<&str> {
        (!self.is_ok()).then_some(&self.outcome)
    }

    /// Seconds since the epoch.
    pub(super) fn started_at(&self) -> f64 {
        seconds(self.started_at)
    }

    pub(super) fn finished_at(&self) -> Option<f64> {
        self.finished_at.map(seconds)
    }
}

fn seconds(microseconds: i64) -> f64 {
    microseconds as f64 / 1e6
}

/// The calls of models by attempt. They wait in a temporary file.
pub(super) struct CallLog(SortedTexts);

impl CallLog {
    /// Reads all calls of a run.
    ///
    /// # Errors
    /// The run cannot be read, or there is no place for temporary files.
    pub(super) async fn of(session: &SessionContext) -> Result<Self, ExportError> {
        let mut waiting = Waiting::new(&std::env::temp_dir()).map_err(unwritten)?;
        let mut add = |key, calls: &[ModelCall]| match calls {
            [] => Ok(()),
            _ => waiting.add(key, &serde_json::to_vec(calls)?),
        };
        let mut key = Key::default();
        let mut calls: Vec<ModelCall> = Vec::new();
        let mut batches = session.sql(CALLS).await?.execute_stream().await?;
        while let Some(batch) = batches.try_next().await? {
            for (of, call) in decode(&batch)? {
                if of != key {
                    add(key, &calls).map_err(unwritten)?;
                    calls.clear();
                    key = of;
                }
                calls.push(call);
            }
        }
        add(key, &calls).map_err(unwritten)?;
        Ok(Self(waiting.sorted().map_err(unwritten)?))
    }

    /// The calls of an attempt.
    ///
    /// # Errors
    /// The temporary file cannot be read.
    pub(super) fn get(&self, key: Key) -> Result<Vec<ModelCall>, ExportError> {
        let calls = match self.0.get(key).map_err(unwritten)? {
            Some(text) => serde_json::from_slice(&text),
            None => Ok(Vec::new()),
        };
        calls.map_err(|error| unwritten(error.into()))
    }
}

fn unwritten(source: io::Error) -> ExportError {
    ExportError::Write {
        path: std::env::temp_dir(),
        source,
    }
}

fn decode(batch: &RecordBatch) -> Result<Vec<(Key, ModelCall)>, ExportError> {
    let number = |name| integers(batch, name);
    let (task, rollout) = (number("task_index")?, number("rollout_index")?);
    let (attempt, call) = (number("attempt")?, number("call")?);
    let (retry, http_status) = (number("retry")?, number("http_status")?);
    let (started_at, finished_at) = (number("started_at")?, number("finished_at")?);
    let (input, output) = (number("input_tokens")?, number("output_tokens")?);
    let (name, outcome) = (texts(batch, "name")?, texts(batch, "outcome")?);
    let latency = batch.column_by_name("latency_ms");
    let latency = latency.and_then(|latency| cast(latency, &DataType::Float64).ok());
    let latency = latency
        .as_ref()
        .and_then(|latency| latency.as_primitive_opt::<Float64Type>());
    let latencies: Vec<Option<f64>> = latency.into_iter().flatten().collect();
    let given = |column: &Int64Array, row| column.is_valid(row).then(|| column.value(row));
    let rows = name.iter().zip(&outcome).enumerate();
    let rows = rows.map(|(row, (name, outcome))| {
        let call = ModelCall {
            call: at(&call, row),
            retry: at(&retry, row),
            name: name.unwrap_or_default().to_owned(),
            outcome: outcome.unwrap_or_default().to_owned(),
            http_status: given(&http_status, row),
            started_at: at(&started_at, row),
            finished_at: given(&finished_at, row),
            latency_ms: latencies.get(row).copied().flatten(),
            input_tokens: given(&input, row),
            output_tokens: given(&output, row),
        };
        ((at(&task, row), at(&rollout, row), at(&attempt, row)), call)
    });
    Ok(rows.collect())
}
