//! [`CallLog`]: the model calls that rollstream itself made in a run, by attempt.

use std::io;

use datafusion::prelude::SessionContext;
use serde::{Deserialize, Serialize};

use super::ExportError;
use super::target::{Key, SortedTexts, Waiting};
use crate::session::{Rows, row};

const CALLS: &str = include_str!("../../queries/export/calls.sql");

row! {
    /// A call of a model within an attempt that rollstream runs itself.
    #[derive(Debug, Clone, Serialize, Deserialize)]
    pub(super) struct ModelCall {
        task_index: i64,
        rollout_index: i64,
        attempt: i64,
        call: i64,
        retry: i64,
        pub(super) name: String,
        outcome: String,
        pub(super) http_status: Option<i64>,
        started_at: i64,
        finished_at: Option<i64>,
        pub(super) latency_ms: Option<f64>,
        pub(super) input_tokens: Option<i64>,
        pub(super) output_tokens: Option<i64>,
    }
}

impl ModelCall {
    fn key(&self) -> Key {
        (self.task_index, self.rollout_index, self.attempt)
    }

    /// Returns the request id that was sent with the call.
    pub(super) fn id(&self) -> String {
        let (task, rollout, attempt) = self.key();
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

    /// Returns why it failed, if it did.
    pub(super) fn error(&self) -> Option<&str> {
        (!self.is_ok()).then_some(&self.outcome)
    }

    /// Returns the start in seconds since 1970.
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
        let mut rows = Rows::of(session, CALLS, ModelCall::rows).await?;
        while let Some(first) = rows.next().await? {
            let key = first.key();
            let mut calls = vec![first];
            while let Some(call) = rows.next_if(|call| call.key() == key).await? {
                calls.push(call);
            }
            let text = serde_json::to_vec(&calls).map_err(io::Error::from);
            text.and_then(|text| waiting.add(key, &text))
                .map_err(unwritten)?;
        }
        Ok(Self(waiting.sorted().map_err(unwritten)?))
    }

    /// Returns the calls of an attempt.
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
    ExportError::write(&std::env::temp_dir())(source)
}
