use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;

use arrow::array::{Array, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use arrow::record_batch::RecordBatch;
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;
use serde::{Deserialize, Serialize};

use super::columns::{at, integers, texts};
use super::error::ExportError;
use super::sorted::Key;

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

/// The calls of models by attempt. They wait in a temporary file; in memory is where those of each attempt stand.
pub(super) struct CallLog {
    file: File,
    places: Vec<(Key, u64, usize)>,
}

impl CallLog {
    /// Reads all of a run.
    ///
    /// # Errors
    /// The run cannot be read, or there is no place for temporary files.
    pub(super) async fn of(session: &SessionContext) -> Result<Self, ExportError> {
        let mut writing = Writing {
            file: BufWriter::new(tempfile::tempfile().map_err(unwritten)?),
            places: Vec::new(),
            end: 0,
        };
        let mut key = Key::default();
        let mut calls: Vec<ModelCall> = Vec::new();
        let mut batches = session.sql(CALLS).await?.execute_stream().await?;
        while let Some(batch) = batches.try_next().await? {
            for (of, call) in decode(&batch)? {
                if of != key {
                    writing.add(key, &calls)?;
                    calls.clear();
                    key = of;
                }
                calls.push(call);
            }
        }
        writing.add(key, &calls)?;
        let Writing { file, places, .. } = writing;
        let file = file
            .into_inner()
            .map_err(|error| unwritten(error.into_error()))?;
        Ok(Self { file, places })
    }

    /// Those of an attempt.
    ///
    /// # Errors
    /// The temporary file cannot be read.
    pub(super) fn get(&self, key: Key) -> Result<Vec<ModelCall>, ExportError> {
        let place = self
            .places
            .binary_search_by_key(&key, |(key, ..)| *key)
            .ok();
        let Some((_, offset, length)) = place.and_then(|place| self.places.get(place)) else {
            return Ok(Vec::new());
        };
        let mut text = vec![0; *length];
        self.file
            .read_exact_at(&mut text, *offset)
            .map_err(unwritten)?;
        serde_json::from_slice(&text).map_err(|error| unwritten(error.into()))
    }
}

struct Writing {
    file: BufWriter<File>,
    places: Vec<(Key, u64, usize)>,
    end: u64,
}

impl Writing {
    fn add(&mut self, key: Key, calls: &[ModelCall]) -> Result<(), ExportError> {
        if calls.is_empty() {
            return Ok(());
        }
        let text = serde_json::to_vec(calls).map_err(|error| unwritten(error.into()))?;
        self.file.write_all(&text).map_err(unwritten)?;
        self.places.push((key, self.end, text.len()));
        self.end += text.len() as u64;
        Ok(())
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
    let given =
        |column: &arrow::array::Int64Array, row| column.is_valid(row).then(|| column.value(row));
    let rows = (0..batch.num_rows()).map(|row| {
        let key = (at(&task, row), at(&rollout, row), at(&attempt, row));
        let name = if name.is_valid(row) {
            name.value(row)
        } else {
            ""
        };
        let latency = latency.filter(|latency| latency.is_valid(row));
        let call = ModelCall {
            call: at(&call, row),
            retry: at(&retry, row),
            name: name.to_owned(),
            outcome: outcome.value(row).to_owned(),
            http_status: given(&http_status, row),
            started_at: at(&started_at, row),
            finished_at: given(&finished_at, row),
            latency_ms: latency.map(|latency| latency.value(row)),
            input_tokens: given(&input, row),
            output_tokens: given(&output, row),
        };
        (key, call)
    });
    Ok(rows.collect())
}
