use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{AsArray, RecordBatch, StringViewArray};
use arrow::datatypes::Int64Type;
use datafusion::common::{Result, exec_datafusion_err};
use indexmap::IndexMap;

use super::call::OwedRow;
use crate::agent::Agents;
use crate::config::SeedField;
use crate::request::RequestTemplate;
use crate::schema;

/// Rows owed, in the order of the plan, in a lane per agent: an agent at its own limit holds up
/// nobody else's rows.
#[derive(Debug)]
pub(super) struct Queue {
    lanes: IndexMap<Arc<str>, Lane>,
    capacity: usize,
    len: usize,
    pushed: u64,
    seed: Option<SeedField>,
}

#[derive(Debug)]
struct Lane {
    limit: usize,
    in_flight: usize,
    rows: VecDeque<Queued>,
    template: Option<CachedTemplate>,
}

#[derive(Debug)]
struct Queued {
    order: u64,
    batch: Arc<OwedBatch>,
    row: usize,
    since: Instant,
}

/// The request of the last task: the rollouts of a task follow each other.
#[derive(Debug)]
struct CachedTemplate {
    batch: Arc<OwedBatch>,
    view: u128,
    template: Arc<RequestTemplate>,
}

#[derive(Debug)]
struct OwedBatch {
    task_index: Vec<i64>,
    rollout_index: Vec<i64>,
    attempt: Vec<i64>,
    request: StringViewArray,
}

impl Queue {
    pub(super) fn new(capacity: usize, seed: Option<SeedField>) -> Self {
        Self {
            lanes: IndexMap::new(),
            capacity,
            len: 0,
            pushed: 0,
            seed,
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.len < self.capacity
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn clear(&mut self) {
        self.lanes.values_mut().for_each(|lane| lane.rows.clear());
        self.len = 0;
    }

    pub(super) fn push(&mut self, batch: &RecordBatch, agents: &Agents) -> Result<()> {
        let column = |name: &str| {
            let column = batch.column_by_name(name);
            column.ok_or_else(|| exec_datafusion_err!("the rows owed have no column '{name}'"))
        };
        let integers = |name: &str| -> Result<Vec<i64>> {
            Ok(column(name)?.as_primitive::<Int64Type>().values().to_vec())
        };
        let names = column(schema::AGENT_NAME)?.as_string_view();
        let owed = Arc::new(OwedBatch {
            task_index: integers(schema::TASK_INDEX)?,
            rollout_index: integers(schema::ROLLOUT_INDEX)?,
            attempt: integers(schema::ATTEMPT)?,
            request: column(schema::REQUEST)?.as_string_view().clone(),
        });
        let since = Instant::now();
        for row in 0..batch.num_rows() {
            let name = names.value(row);
            if !self.lanes.contains_key(name) {
                let limit = agents
                    .get(name)
                    .and_then(|member| member.concurrency)
                    .unwrap_or(usize::MAX);
                let lane = Lane {
                    limit,
                    in_flight: 0,
                    rows: VecDeque::new(),
                    template: None,
                };
                self.lanes.insert(Arc::from(name), lane);
            }
            if let Some(lane) = self.lanes.get_mut(name) {
                lane.rows.push_back(Queued {
                    order: self.pushed,
                    batch: Arc::clone(&owed),
                    row,
                    since,
                });
                self.pushed += 1;
                self.len += 1;
            }
        }
        Ok(())
    }

    /// The next row that may be sent: the first in the plan's order whose agent is below its limit.
    pub(super) fn pop(&mut self) -> Option<OwedRow> {
        let free = self
            .lanes
            .iter_mut()
            .filter(|(_, lane)| lane.in_flight < lane.limit);
        let first = free
            .filter_map(|(name, lane)| Some((lane.rows.front()?.order, name, lane)))
            .min_by_key(|of| of.0);
        let (_, name, lane) = first?;
        let Queued {
            batch, row, since, ..
        } = lane.rows.pop_front()?;
        lane.in_flight += 1;
        self.len -= 1;
        let template = lane.template(&batch, row, self.seed);
        Some(OwedRow {
            task_index: *batch.task_index.get(row)?,
            rollout_index: *batch.rollout_index.get(row)?,
            attempt: u32::try_from(*batch.attempt.get(row)?).unwrap_or(u32::MAX),
            agent_name: Arc::clone(name),
            template,
            since,
        })
    }

    /// A call to an agent came back.
    pub(super) fn returned(&mut self, agent_name: &str) {
        if let Some(lane) = self.lanes.get_mut(agent_name) {
            lane.in_flight -= 1;
        }
    }
}

impl Lane {
    fn template(
        &mut self,
        batch: &Arc<OwedBatch>,
        row: usize,
        seed: Option<SeedField>,
    ) -> Result<Arc<RequestTemplate>, String> {
        // The same view into the same buffers is the same text, unless it is too short to be one.
        let view = batch.request.views().get(row).copied().unwrap_or_default();
        if let Some(cached) = &self.template
            && cached.view == view
            && Arc::ptr_eq(&cached.batch, batch)
        {
            return Ok(Arc::clone(&cached.template));
        }
        let template = RequestTemplate::new(batch.request.value(row), seed)
            .map_err(|error| error.to_string())?;
        let template = Arc::new(template);
        self.template = Some(CachedTemplate {
            batch: Arc::clone(batch),
            view,
            template: Arc::clone(&template),
        });
        Ok(template)
    }
}
