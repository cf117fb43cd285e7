//! A row on its way through the operator: [`PendingBatch`] as it comes from the plan, [`QueuedRow`] until its first
//! attempt, [`PendingRow`] with its request, [`Dispatch`] while its attempt is in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arrow::array::{AsArray, RecordBatch, StringViewArray};
use arrow::datatypes::Int64Type;
use bytes::Bytes;
use datafusion::common::{Result, exec_datafusion_err};

use super::context::RunContext;
use crate::agent::{Reply, RolloutRequest};
use crate::call::{CallJournal, CallLog, RolloutKey};
use crate::config::MemoryPlan;
use crate::json::Object;
use crate::outcome::resume::REUSE_DELIVERABLE;
use crate::outcome::{Outcome, Times, Verdict, Waited};
use crate::request::RequestTemplate;
use crate::retry::{Failure, FailureClass, FailureCounts, Prior};
use crate::schema;
use crate::store::DispatchRecord;

/// Pending rows, as they come from the plan.
#[derive(Debug)]
pub(super) struct PendingBatch {
    task_index: Vec<i64>,
    rollout_index: Vec<i64>,
    request: StringViewArray,
    agent_name: StringViewArray,
    bytes: usize,
    held: Arc<AtomicUsize>,
}

impl Drop for PendingBatch {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl PendingBatch {
    /// Creates a batch, whose requests count in `held` until it is dropped.
    pub(super) fn new(batch: &RecordBatch, held: &Arc<AtomicUsize>) -> Result<Self> {
        let column = |name: &str| {
            let column = batch.column_by_name(name);
            column.ok_or_else(|| exec_datafusion_err!("the pending rows have no column '{name}'"))
        };
        let integers = |name: &str| -> Result<Vec<i64>> {
            Ok(column(name)?.as_primitive::<Int64Type>().values().to_vec())
        };
        let request = column(schema::REQUEST)?.as_string_view().clone();
        // The rollouts of a task share the text of their request.
        let mut before = None;
        let mut bytes = 0;
        for view in request.views() {
            if before.replace(view) != Some(view) {
                bytes += *view as u32 as usize;
            }
        }
        let batch = Self {
            task_index: integers(schema::TASK_INDEX)?,
            rollout_index: integers(schema::ROLLOUT_INDEX)?,
            request,
            agent_name: column(schema::AGENT_NAME)?.as_string_view().clone(),
            bytes,
            held: Arc::clone(held),
        };
        held.fetch_add(bytes, Ordering::Relaxed);
        Ok(batch)
    }

    pub(super) fn agent_names(&self) -> impl Iterator<Item = &str> {
        self.agent_name.iter().map(Option::unwrap_or_default)
    }
}

/// A row that waits for its first attempt in this process.
#[derive(Debug)]
pub(super) struct QueuedRow {
    /// Its place in the plan.
    pub(super) order: u64,
    /// The instant since which the row waits.
    pub(super) since: Instant,
    /// The time for which rate limits and pauses had held back the agent's rows at `since`.
    pub(super) held_before: Duration,
    /// Whether no earlier process has tried the rollout and failed.
    pub(super) is_fresh: bool,
    batch: Arc<PendingBatch>,
    row: usize,
}

/// The request of the last task: the rollouts of a task follow each other.
#[derive(Debug)]
pub(super) struct CachedTemplate {
    batch: Arc<PendingBatch>,
    view: u128,
    template: Arc<RequestTemplate>,
}

impl QueuedRow {
    pub(super) fn new(
        batch: &Arc<PendingBatch>,
        row: usize,
        order: u64,
        since: Instant,
        context: &RunContext,
    ) -> Self {
        let mut queued = Self {
            order,
            since,
            held_before: Duration::ZERO,
            is_fresh: true,
            batch: Arc::clone(batch),
            row,
        };
        queued.is_fresh = queued.prior(context).failures.is_untried();
        queued
    }

    /// Returns the earlier attempts at the rollout.
    fn prior(&self, context: &RunContext) -> Prior {
        let prior = context.prior.get(&self.key());
        prior.copied().unwrap_or_default()
    }

    /// Returns the indices of task and rollout.
    fn key(&self) -> (i64, i64) {
        let index = |column: &[i64]| column.get(self.row).copied().unwrap_or_default();
        let batch = &self.batch;
        (index(&batch.task_index), index(&batch.rollout_index))
    }

    pub(super) fn task_index(&self) -> i64 {
        self.key().0
    }

    /// Bytes that its call takes while it is in flight.
    pub(super) fn memory(&self) -> u64 {
        // A view begins with the length of its text.
        MemoryPlan::CALL + u64::from(self.view() as u32)
    }

    fn view(&self) -> u128 {
        let views = self.batch.request.views();
        views.get(self.row).copied().unwrap_or_default()
    }

    /// Returns the row with its request. `cache` holds the request of the row before.
    pub(super) fn pending(
        &self,
        agent_name: &Arc<str>,
        context: &RunContext,
        cache: &mut Option<CachedTemplate>,
    ) -> PendingRow {
        let (task_index, rollout_index) = self.key();
        let prior = self.prior(context);
        PendingRow {
            key: RolloutKey::new(task_index, rollout_index, prior.attempt),
            agent_name: Arc::clone(agent_name),
            template: self.template(context, cache),
            failures: prior.failures,
            reuses_deliverable: prior.reuses_deliverable,
            order: self.order,
        }
    }

    fn template(
        &self,
        context: &RunContext,
        cache: &mut Option<CachedTemplate>,
    ) -> Result<Arc<RequestTemplate>, Arc<str>> {
        // The same view into the same buffers is the same text, unless the text is so short that the view holds it.
        let view = self.view();
        if let Some(cached) = cache
            && cached.view == view
            && Arc::ptr_eq(&cached.batch, &self.batch)
        {
            return Ok(Arc::clone(&cached.template));
        }
        let request = self.batch.request.value(self.row);
        let template = if context.as_given {
            RequestTemplate::as_given(request)
        } else {
            RequestTemplate::new(request, context.seed)
        };
        let template = Arc::new(template.map_err(|error| Arc::from(error.to_string()))?);
        *cache = Some(CachedTemplate {
            batch: Arc::clone(&self.batch),
            view,
            template: Arc::clone(&template),
        });
        Ok(template)
    }
}

/// A rollout that is about to be sent, or waits for a retry.
#[derive(Debug, Clone)]
pub(super) struct PendingRow {
    /// The key of the next attempt.
    pub(super) key: RolloutKey,
    pub(super) agent_name: Arc<str>,
    template: Result<Arc<RequestTemplate>, Arc<str>>,
    /// The failed attempts so far.
    pub(super) failures: FailureCounts,
    /// Whether this attempt only judges the deliverable of an earlier one again.
    pub(super) reuses_deliverable: bool,
    /// Its place in the plan.
    pub(super) order: u64,
}

impl PendingRow {
    /// Bytes that its call takes while it is in flight.
    pub(super) fn memory(&self) -> u64 {
        let request = self.template.as_ref().map_or(0, |template| template.len());
        MemoryPlan::CALL + request as u64
    }

    /// Calls the agent. Every result, also an error, becomes a reply.
    pub(super) async fn call(self, context: &RunContext, calls: CallLog) -> Reply {
        let failed = |why: String| Reply::new(Err(Failure::new(FailureClass::Data, why)));
        let Some(member) = context.agents.get(&self.agent_name) else {
            return failed(format!("no agent '{}' is known", self.agent_name));
        };
        match self.body() {
            Ok(body) => {
                let as_given = context.as_given;
                let request = RolloutRequest {
                    body,
                    calls,
                    as_given,
                };
                member.run(request).await
            }
            Err(why) => failed(format!("the request can't be made: {why}")),
        }
    }

    fn body(self) -> Result<Bytes, Arc<str>> {
        let key = self.key;
        let body = self.template?.materialize(key.rollout_index, key.attempt);
        if self.reuses_deliverable
            && let Ok(mut row) = Object::parse(&body)
        {
            row.set(REUSE_DELIVERABLE, "true");
            return Ok(Bytes::from(row.to_string()));
        }
        // The server reports what is wrong with a malformed request.
        Ok(Bytes::from(body))
    }
}

/// An attempt in flight, with all that its row of `attempts` and a retry need if it is cut off.
#[derive(Debug)]
pub(super) struct Dispatch {
    pub(super) row: PendingRow,
    pub(super) began: Instant,
    dispatched_at: SystemTime,
    waited: Waited,
    concurrency_limit: usize,
    /// The calls within it.
    pub(super) calls: CallLog,
    /// Whether a notice already said that the call is slow.
    pub(super) is_slow: bool,
}

impl Dispatch {
    pub(super) fn new(
        row: PendingRow,
        waited: Waited,
        concurrency_limit: usize,
        (began, dispatched_at): (Instant, SystemTime),
        journal: Option<Arc<dyn CallJournal>>,
    ) -> Self {
        Self {
            calls: CallLog::new(row.key, journal),
            row,
            began,
            dispatched_at,
            waited,
            concurrency_limit,
            is_slow: false,
        }
    }

    /// Returns the record for the dispatch log, which is written before the attempt is sent.
    pub(super) fn record(&self) -> DispatchRecord {
        let since = self.dispatched_at.duration_since(UNIX_EPOCH);
        DispatchRecord {
            key: self.row.key,
            dispatched_at_us: since.unwrap_or_default().as_micros() as i64,
            waited: self.waited,
        }
    }

    /// Returns the row of an attempt that was cut off.
    pub(super) fn cut_off(self, why: &str) -> Outcome {
        let reply = Reply {
            elapsed: self.began.elapsed(),
            ..Reply::new(Err(Failure::new(FailureClass::Interrupted, why)))
        };
        self.outcome(reply, false)
    }

    /// Returns the row of an attempt that ended. `terminal` if no further attempt follows.
    pub(super) fn outcome(self, reply: Reply, terminal: bool) -> Outcome {
        let unreachable = matches!(&reply.result, Err(failure) if failure.unreachable);
        let (connect, server) = if unreachable {
            (reply.elapsed, None)
        } else {
            let server = reply.elapsed.saturating_sub(reply.connect);
            (reply.connect, Some(server))
        };
        Outcome {
            key: self.row.key,
            agent_name: self.row.agent_name,
            http_status: reply.http_status,
            response_headers: reply.headers,
            dispatched_at: self.dispatched_at,
            times: Times {
                waited: self.waited,
                connect: Some(connect),
                first_byte: reply.first_byte,
                server,
                client: Some(self.began.elapsed().saturating_sub(reply.elapsed)),
            },
            concurrency_limit: u32::try_from(self.concurrency_limit).ok(),
            calls: self.calls.take(),
            verdict: match reply.result {
                Ok(answer) => Verdict::Ok(answer),
                Err(failure) => Verdict::Failed { failure, terminal },
            },
        }
    }
}
