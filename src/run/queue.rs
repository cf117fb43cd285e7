use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use datafusion::common::Result;
use indexmap::IndexMap;

use super::call::{Dispatch, OwedRow, Turn};
use super::context::RunContext;
use super::lane::{Lane, News, Readiness};
use super::owed::{OwedBatch, Queued};
use crate::agent::Reply;

/// Rows owed, in the order of the plan, in a lane per agent: an agent that is busy, limited or down
/// holds up nobody else's rows.
#[derive(Debug)]
pub(super) struct Queue {
    context: Arc<RunContext>,
    lanes: IndexMap<Arc<str>, Lane>,
    concurrency: usize,
    in_flight: usize,
    /// Memory of the calls in flight, in bytes.
    in_flight_bytes: u64,
    /// Somebody was told that there is memory for fewer calls than are allowed.
    is_short: bool,
    ceilings: Vec<usize>,
    pushed: u64,
    /// Bytes of the requests of all rows that wait.
    held: Arc<AtomicUsize>,
}

/// So many rows may wait whatever their requests take.
const FEW_ROWS: usize = 64;

/// What the queue has to say when it is asked for a row.
#[derive(Debug)]
pub(super) enum Next {
    /// A row whose turn it is.
    Row(Box<Turn>),
    /// None before this.
    At(Instant),
    /// None before a call ends, or rows come.
    Later,
    /// An agent was given up that had not answered for this long.
    GivenUp(Arc<str>, Duration),
}

impl Queue {
    pub(super) fn new(context: Arc<RunContext>, concurrency: usize) -> Self {
        let mut queue = Self {
            context: Arc::clone(&context),
            lanes: IndexMap::new(),
            concurrency,
            in_flight: 0,
            in_flight_bytes: 0,
            is_short: false,
            ceilings: Vec::new(),
            pushed: 0,
            held: Arc::default(),
        };
        for (name, owed) in &context.owed {
            queue.lane(name, *owed);
        }
        queue.share();
        queue
    }

    fn lane(&mut self, name: &str, outstanding: u64) -> Option<&mut Lane> {
        if !self.lanes.contains_key(name) {
            let name: Arc<str> = Arc::from(name);
            let lane = Lane::new(Arc::clone(&name), Arc::clone(&self.context), outstanding);
            self.lanes.insert(name, lane);
        }
        self.lanes.get_mut(name)
    }

    fn len(&self) -> usize {
        self.lanes.values().map(Lane::len).sum()
    }

    pub(super) fn has_room(&self) -> bool {
        let len = self.len();
        let held = self.held.load(Ordering::Relaxed);
        let few = (held as u64) < self.context.memory.waiting;
        len < self.context.lookahead && (few || len < self.concurrency && len < FEW_ROWS)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lanes.values().all(|lane| lane.len() == 0)
    }

    pub(super) fn clear(&mut self) {
        self.lanes.values_mut().for_each(Lane::clear);
    }

    pub(super) fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        let batch = Arc::new(OwedBatch::new(batch, &self.held)?);
        let since = Instant::now();
        for (row, name) in batch.agent_names().enumerate() {
            let order = self.pushed;
            if let Some(lane) = self.lane(name, u64::MAX) {
                lane.push(Queued::new(&batch, row, order, since));
            }
            self.pushed += 1;
        }
        Ok(())
    }

    /// A row that waits for another attempt until `due`.
    pub(super) fn retry(&mut self, row: OwedRow, due: Instant) {
        if let Some(lane) = self.lanes.get_mut(&row.agent_name) {
            lane.retry(row, due);
        }
    }

    /// The next row. Agents share what may be in flight: the one with the fewest calls comes first,
    /// and nobody gets what is another's fair share as long as that one has work left. Rows of an
    /// agent come in the order of the plan.
    pub(super) fn next(&mut self, now: Instant) -> Next {
        if self.in_flight >= self.concurrency || self.is_short_of_memory() {
            return Next::Later;
        }
        let mut first: Option<(usize, u64, usize)> = None;
        let mut wake: Option<Instant> = None;
        for (place, (lane, ceiling)) in self.lanes.values_mut().zip(&self.ceilings).enumerate() {
            match lane.readiness(now, *ceiling) {
                Readiness::Now(order) => {
                    let rank = (lane.in_flight(), order, place);
                    first = Some(first.map_or(rank, |first| first.min(rank)));
                }
                Readiness::At(then) => wake = Some(wake.map_or(then, |wake| wake.min(then))),
                Readiness::Later => {}
                Readiness::GivenUp(silent) => {
                    let name = self
                        .lanes
                        .get_index(place)
                        .map(|(name, _)| Arc::clone(name));
                    return Next::GivenUp(name.unwrap_or_default(), silent);
                }
            }
        }
        let turn = first.and_then(|(_, _, place)| {
            let (_, lane) = self.lanes.get_index_mut(place)?;
            lane.take(now, self.concurrency)
        });
        match (turn, wake) {
            (Some(turn), _) => {
                self.in_flight += 1;
                self.in_flight_bytes += turn.row.memory();
                Next::Row(Box::new(turn))
            }
            (None, Some(wake)) => Next::At(wake),
            (None, None) => Next::Later,
        }
    }

    /// One call is always made: what it needs can't be less.
    fn is_short_of_memory(&mut self) -> bool {
        let plan = self.context.memory;
        if self.in_flight == 0 || self.in_flight_bytes < plan.calls {
            return false;
        }
        if !self.is_short {
            self.is_short = true;
            let total = bytesize::ByteSize(plan.total);
            self.context.tally.notice(format!(
                "memory of {total} (--memory) is enough for {} calls of this kind in flight, and not for {} \
                 (--concurrency)",
                self.in_flight, self.concurrency
            ));
        }
        true
    }

    /// Works out the most calls that each agent may have in flight, until this is called again.
    pub(super) fn share(&mut self) {
        let share = (self.concurrency / self.lanes.len().max(1)).max(1);
        let reserved = self.lanes.values().map(|lane| lane.reserved(share));
        let all: usize = reserved.sum();
        self.ceilings.clear();
        let ceilings = self.lanes.values().map(|lane| {
            let others = all - lane.reserved(share);
            lane.ceiling(self.concurrency.saturating_sub(others).max(1))
        });
        self.ceilings.extend(ceilings);
    }

    /// A call ended: what that says of its agent.
    pub(super) fn ended(&mut self, now: Instant, dispatch: &Dispatch, reply: &Reply) -> News {
        let Some(lane) = self.lanes.get_mut(&dispatch.row.agent_name) else {
            return News::None;
        };
        self.in_flight = self.in_flight.saturating_sub(1);
        let memory = dispatch.row.memory();
        self.in_flight_bytes = self.in_flight_bytes.saturating_sub(memory);
        let news = lane.ended(now, dispatch, reply);
        if let Some(limit) = lane.new_limit() {
            let tally = &self.context.tally;
            tally.set_concurrency_limit(&dispatch.row.agent_name, limit);
        }
        news
    }

    /// A rollout is finished, or left owed.
    pub(super) fn finished(&mut self, agent_name: &str) {
        if let Some(lane) = self.lanes.get_mut(agent_name) {
            lane.finished();
        }
    }
}
