use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrow::array::{AsArray, RecordBatch, StringViewArray};
use arrow::datatypes::Int64Type;
use datafusion::common::{Result, exec_datafusion_err};

use super::call::PendingRow;
use super::context::RunContext;
use crate::config::{MemoryPlan, SeedField};
use crate::request::RequestTemplate;
use crate::schema;

/// Rows that are pending, as they come from the plan.
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

/// A row that waits for its first turn in this process.
#[derive(Debug)]
pub(super) struct Queued {
    /// Its place in the plan.
    pub(super) order: u64,
    /// Since when it waits.
    pub(super) since: Instant,
    /// How long the rows of its agent had been held back by then.
    pub(super) held_before: Duration,
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

impl PendingBatch {
    /// The bytes of its requests are added to `held`, until it is dropped.
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
        let agent_name = column(schema::AGENT_NAME)?.as_string_view().clone();
        let task_index = integers(schema::TASK_INDEX)?;
        let rollout_index = integers(schema::ROLLOUT_INDEX)?;
        held.fetch_add(bytes, Ordering::Relaxed);
        Ok(Self {
            task_index,
            rollout_index,
            request,
            agent_name,
            bytes,
            held: Arc::clone(held),
        })
    }

    pub(super) fn agent_names(&self) -> impl Iterator<Item = &str> {
        self.agent_name.iter().map(Option::unwrap_or_default)
    }
}

impl Queued {
    pub(super) fn new(batch: &Arc<PendingBatch>, row: usize, order: u64, since: Instant) -> Self {
        Self {
            order,
            since,
            held_before: Duration::ZERO,
            batch: Arc::clone(batch),
            row,
        }
    }

    pub(super) fn task_index(&self) -> i64 {
        let task_index = self.batch.task_index.get(self.row);
        task_index.copied().unwrap_or_default()
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

    /// The row with its request. `cache` holds the request of the row before.
    pub(super) fn pending(
        &self,
        agent_name: &Arc<str>,
        context: &RunContext,
        cache: &mut Option<CachedTemplate>,
    ) -> PendingRow {
        let task_index = self.task_index();
        let rollout_index = self.batch.rollout_index.get(self.row);
        let rollout_index = rollout_index.copied().unwrap_or_default();
        let prior = context.prior.get(&(task_index, rollout_index));
        let prior = prior.copied().unwrap_or_default();
        PendingRow {
            task_index,
            rollout_index,
            attempt: prior.attempt,
            agent_name: Arc::clone(agent_name),
            template: self.template(context.seed, cache),
            failures: prior.failures,
            reuses_deliverable: prior.reuses_deliverable,
            order: self.order,
        }
    }

    fn template(
        &self,
        seed: Option<SeedField>,
        cache: &mut Option<CachedTemplate>,
    ) -> Result<Arc<RequestTemplate>, Arc<str>> {
        // The same view into the same buffers is the same text, unless it is too short to be one.
        let view = self.view();
        if let Some(cached) = cache
            && cached.view == view
            && Arc::ptr_eq(&cached.batch, &self.batch)
        {
            return Ok(Arc::clone(&cached.template));
        }
        let template = RequestTemplate::new(self.batch.request.value(self.row), seed)
            .map_err(|error| Arc::from(error.to_string()))?;
        let template = Arc::new(template);
        *cache = Some(CachedTemplate {
            batch: Arc::clone(&self.batch),
            view,
            template: Arc::clone(&template),
        });
        Ok(template)
    }
}
