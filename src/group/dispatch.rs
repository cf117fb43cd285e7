use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
use datafusion::common::Result;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execute_stream;
use datafusion::prelude::SessionConfig;
use serde_json::Value;
use tokio_util::task::TaskTracker;

use crate::agent::Agents;
use crate::config::MemoryPlan;
use crate::progress::Progress;
use crate::request::ATTEMPT_INDEX;
use crate::retry::{Backoff, Failure, FailureClass, Prior};
use crate::run::{FailureLimits, Registry, RunContext, RunExec, RunStep, Shutdown};
use crate::schema;
use crate::session::row;

/// Sends rows from memory through the run operator.
#[derive(Debug)]
pub(super) struct Dispatcher {
    pub(super) agents: Agents,
    pub(super) memory: MemoryPlan,
    /// The most calls in flight.
    pub(super) most_calls: usize,
    pub(super) backoff: Backoff,
    /// Whether rows are sent without the index of their rollout.
    pub(super) as_given: bool,
    /// Holds the limits of rates and of calls in flight, over all streams.
    pub(super) registry: Arc<Registry>,
    pub(super) progress: Arc<Progress>,
}

/// A row to send.
pub(super) struct DispatchRow<'a> {
    pub(super) task_index: i64,
    pub(super) rollout_index: i64,
    pub(super) agent_name: &'a str,
    pub(super) request: String,
}

impl Dispatcher {
    /// Starts the run operator over rows, and returns its outcomes. `attempt` is the number of the first attempt.
    /// Dropping the stream cancels the calls in flight.
    pub(super) fn run(
        &self,
        rows: &[DispatchRow<'_>],
        attempt: u32,
    ) -> Result<SendableRecordBatchStream> {
        let prior = Prior {
            attempt,
            ..Prior::default()
        };
        let of_rows = rows
            .iter()
            .map(|row| ((row.task_index, row.rollout_index), prior));
        let run = RunContext {
            agents: self.agents.clone(),
            pending: BTreeMap::new(),
            prior: if attempt == 0 {
                HashMap::new()
            } else {
                of_rows.collect()
            },
            seed: None,
            as_given: self.as_given,
            memory: self.memory,
            most_calls: self.most_calls,
            lookahead: rows.len(),
            backoff: self.backoff,
            // The caller decides how long it waits for an agent.
            agent_patience: None,
            failure_limits: FailureLimits::default(),
            dispatch_budget: None,
            dispatches: None,
            registry: Arc::clone(&self.registry),
            progress: Arc::clone(&self.progress),
            shutdown: Shutdown::default(),
            sending: TaskTracker::new(),
        };
        let rows = batch(rows)?;
        let schema = rows.schema();
        let input = MemorySourceConfig::try_new_exec(&[vec![rows]], schema, None)?;
        let config = SessionConfig::new().with_extension(Arc::new(run));
        let context = TaskContext::default().with_session_config(config);
        let step = RunStep {
            concurrency: self.most_calls,
        };
        execute_stream(Arc::new(RunExec::new(step, input)), Arc::new(context))
    }
}

fn batch(rows: &[DispatchRow<'_>]) -> Result<RecordBatch> {
    let indices = |of: fn(&DispatchRow<'_>) -> i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(rows.iter().map(of)))
    };
    let texts = |of: fn(&DispatchRow<'_>) -> String| -> ArrayRef {
        Arc::new(StringViewArray::from_iter_values(rows.iter().map(of)))
    };
    let columns = vec![
        indices(|row| row.task_index),
        indices(|row| row.rollout_index),
        texts(|row| row.agent_name.to_owned()),
        texts(|row| row.request.clone()),
    ];
    Ok(RecordBatch::try_new(schema::pending(), columns)?)
}

row! {
    /// An attempt at a rollout that has ended.
    pub(super) struct Ended {
        pub(super) task_index: i64,
        pub(super) rollout_index: i64,
        pub(super) attempt: u32,
        pub(super) outcome: String,
        pub(super) http_status: Option<i64>,
        pub(super) error: String,
        pub(super) terminal: bool,
        pub(super) result: Option<String>,
    }
}

impl Ended {
    pub(super) fn failure(&self) -> Failure {
        let class = FailureClass::of_name(&self.outcome).unwrap_or(FailureClass::Data);
        Failure {
            http_status: self.http_status.and_then(|status| status.try_into().ok()),
            ..Failure::new(class, &*self.error)
        }
    }
}

/// Removes the attempt index from an answer that repeats the fields of its row, where only a retry has added it.
pub(super) fn remove_attempt(row: &Value, answer: &mut Value, attempt: u32) {
    if attempt > 0
        && row.get(ATTEMPT_INDEX).is_none()
        && let Value::Object(fields) = answer
    {
        fields.shift_remove(ATTEMPT_INDEX);
    }
}

/// Returns the failure of a request or an answer that can't be used.
pub(super) fn data(why: impl ToString) -> Failure {
    Failure::new(FailureClass::Data, why.to_string())
}
