use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use arrow::array::RecordBatch;
use datafusion::common::Result;
use indexmap::IndexMap;

use super::agent_queue::{AgentQueue, Picked, Readiness};
use super::context::RunContext;
use super::limiter::{Ended, Verdict};
use super::registry::{Permit, Room, Seat, State};
use super::row::{Dispatch, PendingBatch, PendingRow, QueuedRow};
use crate::call::CallJournal;
use crate::outcome::Waited;

/// The rows that wait in one partition, in the order of the plan, by agent: an agent that is busy, limited or down does
/// not hold up the rows of others.
#[derive(Debug)]
pub(super) struct Queue {
    context: Arc<RunContext>,
    seat: Seat,
    agents: IndexMap<Arc<str>, AgentQueue>,
    concurrency: usize,
    pushed: u64,
    is_stalled: bool,
}

/// This many rows may wait, however large their requests are.
const FEW_ROWS: usize = 64;

/// A partition that left a place to others checks again after this time, in case they do not take it.
const RECHECK: Duration = Duration::from_millis(50);

/// The rows that may be sent now.
#[derive(Debug, Default)]
pub(super) struct Wave {
    pub(super) rows: Vec<Granted>,
    /// The next instant at which more rows may be sent, if no call ends and no row is queued before.
    pub(super) next: Option<Instant>,
    /// The agents that were down, each with what follows now that the wait for it is over.
    pub(super) judged: Vec<(Arc<str>, Verdict)>,
}

/// A row that may be sent, and the permit for its call.
#[derive(Debug)]
pub(super) struct Granted {
    /// The index of the row's agent in the queue.
    agent: usize,
    row: Picked,
    pub(super) waited: Waited,
    pub(super) concurrency_limit: usize,
    pub(super) permit: Permit,
}

impl Queue {
    pub(super) fn new(context: Arc<RunContext>, concurrency: usize) -> Self {
        Self {
            seat: Seat::take(&context, concurrency),
            context,
            agents: IndexMap::new(),
            concurrency,
            pushed: 0,
            is_stalled: false,
        }
    }

    fn agent(&mut self, name: &str) -> Option<&mut AgentQueue> {
        let place = match self.agents.get_index_of(name) {
            Some(place) => place,
            None => {
                let name: Arc<str> = Arc::from(name);
                let agent = self.context.registry.lock().agent(&self.context, &name);
                let waiting = AgentQueue::new(Arc::clone(&name), agent);
                self.agents.insert_full(name, waiting).0
            }
        };
        self.agents.get_index_mut(place).map(|(_, rows)| rows)
    }

    fn len(&self) -> usize {
        self.agents.values().map(AgentQueue::len).sum()
    }

    pub(super) fn has_room(&self) -> bool {
        let len = self.len();
        let held = self
            .context
            .registry
            .waiting_bytes()
            .load(Ordering::Relaxed);
        let few = (held as u64) < self.context.memory.waiting;
        len < self.context.lookahead && (few || len < self.concurrency && len < FEW_ROWS)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.agents.values().all(|rows| rows.len() == 0)
    }

    /// Returns whether a wave would change nothing.
    pub(super) fn is_idle(&self) -> bool {
        self.agents.values().all(AgentQueue::is_idle)
    }

    pub(super) fn clear(&mut self) {
        self.agents.values_mut().for_each(AgentQueue::clear);
    }

    pub(super) fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        let held = self.context.registry.waiting_bytes();
        let batch = Arc::new(PendingBatch::new(batch, held)?);
        let since = Instant::now();
        for (row, name) in batch.agent_names().enumerate() {
            let queued = QueuedRow::new(&batch, row, self.pushed, since, &self.context);
            if let Some(rows) = self.agent(name) {
                rows.push(queued);
            }
            self.pushed += 1;
        }
        Ok(())
    }

    /// Queues a retry that is due at `due`.
    pub(super) fn retry(&mut self, row: PendingRow, due: Instant) {
        if let Some(rows) = self.agents.get_mut(&row.agent_name) {
            rows.retry(row, due);
        }
    }

    /// Notes that a rollout is finished, or stays pending for another process.
    pub(super) fn finished(&mut self, agent_name: &str) {
        if let Some(rows) = self.agents.get_mut(agent_name) {
            rows.finished();
        }
    }

    /// Waits until there may be a place for a call again.
    pub(super) async fn woken(&self) {
        self.seat.woken().await;
    }

    /// Leaves this partition's share to the others until the next [`Self::wave`].
    pub(super) fn stall(&mut self) {
        if !std::mem::replace(&mut self.is_stalled, true) {
            self.context.registry.lock().stall(self.seat.index());
        }
    }

    /// Takes the rows that may be sent now, at most this many.
    pub(super) fn wave(&mut self, now: Instant, most: usize) -> Wave {
        self.is_stalled = false;
        let context = Arc::clone(&self.context);
        let mut wave = Wave::default();
        let mut state = context.registry.lock();
        self.report(now, &mut state);
        state.share();
        let is_starved = loop {
            if wave.rows.len() >= most {
                // No more can be sent before a call of our own ends.
                break false;
            }
            match state.room(now, self.seat.index()) {
                Room::Free => {}
                Room::None => break true,
                Room::OthersTurn => {
                    wave.next = Some(now + RECHECK);
                    break true;
                }
                Room::ShortOfMemory { calls, concurrency } => {
                    let total = bytesize::ByteSize(context.memory.total);
                    context.progress.notice(format!(
                        "memory of {total} (--memory) is enough for {calls} calls of this kind in flight, and not \
                         for {concurrency} (--concurrency)"
                    ));
                    break true;
                }
            }
            let look = self.look(now, &mut state, &mut wave.judged);
            let Some(agent) = look.first else {
                wave.next = look.next;
                break look.is_starved;
            };
            let Some(granted) = self.take(now, &mut state, agent) else {
                break false;
            };
            wave.rows.push(granted);
        };
        if !wave.judged.is_empty() {
            state.wake_all();
        }
        let wants = self.report(now, &mut state);
        state.rest(
            now,
            self.seat.index(),
            wants,
            is_starved && !self.is_empty(),
        );
        drop(state);
        // Nobody wakes a partition for a retry whose time has not come.
        let due = self.agents.values().filter_map(|rows| rows.next_due(now));
        wave.next = wave.next.into_iter().chain(due).min();
        wave
    }

    /// Tells the limiters how many rows wait. Returns whether any could be sent but for the limits.
    fn report(&mut self, now: Instant, state: &mut State) -> bool {
        let mut wants = false;
        for rows in self.agents.values_mut() {
            if let Some(limiter) = state.limiter(rows.agent) {
                rows.report(now, limiter, self.seat.index());
                wants |= rows.num_ready(now) > 0;
            }
        }
        wants
    }

    /// Finds the agent whose row is next: the one with the fewest calls in flight. No agent gets the fair share
    /// of another one that has work left. Rows of an agent come in the order of the plan.
    fn look(
        &mut self,
        now: Instant,
        state: &mut State,
        judged: &mut Vec<(Arc<str>, Verdict)>,
    ) -> Look {
        let mut look = Look::default();
        let mut first: Option<(usize, u64, usize)> = None;
        for (place, rows) in self.agents.values_mut().enumerate() {
            let Some(limiter) = state.limiter(rows.agent) else {
                continue;
            };
            match rows.readiness(now, limiter, self.seat.index()) {
                Readiness::Now(order) => {
                    let rank = (limiter.in_flight(), order, place);
                    first = Some(first.map_or(rank, |first| first.min(rank)));
                }
                Readiness::At(then) => {
                    look.next = Some(look.next.map_or(then, |next| next.min(then)));
                }
                Readiness::Starved => look.is_starved = true,
                Readiness::OthersTurn => {
                    look.is_starved = true;
                    let then = now + RECHECK;
                    look.next = Some(look.next.map_or(then, |next| next.min(then)));
                }
                Readiness::Empty => {}
                Readiness::Judged(verdict) => judged.push((Arc::clone(&rows.name), verdict)),
            }
        }
        look.first = first.map(|(_, _, place)| place);
        look
    }

    fn take(&mut self, now: Instant, state: &mut State, agent: usize) -> Option<Granted> {
        let (_, rows) = self.agents.get_index_mut(agent)?;
        let wants_fresh = state.limiter(rows.agent)?.wants_fresh();
        let (row, waited) = rows.pick(now, wants_fresh)?;
        let memory = row.memory();
        let grant = state.take(now, self.seat.index(), rows.agent, memory, row.is_fresh())?;
        let call = Ended {
            task_index: row.task_index(),
            began: now,
            grant,
        };
        Some(Granted {
            agent,
            row,
            waited,
            concurrency_limit: state.limit_of(rows.agent),
            permit: self.seat.permit(rows.agent, memory, call),
        })
    }

    /// Returns the attempt of a granted row. Builds the request outside the lock, since it can be large.
    pub(super) fn dispatch(
        &mut self,
        granted: Granted,
        now: Instant,
        time: SystemTime,
        journal: Option<Arc<dyn CallJournal>>,
    ) -> Option<(Dispatch, Permit)> {
        let (_, rows) = self.agents.get_index_mut(granted.agent)?;
        let row = rows.pending(granted.row, &self.context);
        let dispatch = Dispatch::new(
            row,
            granted.waited,
            granted.concurrency_limit,
            (now, time),
            journal,
        );
        Some((dispatch, granted.permit))
    }
}

/// The result of [`Queue::look`].
#[derive(Debug, Default)]
struct Look {
    first: Option<usize>,
    next: Option<Instant>,
    is_starved: bool,
}
