use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::context::RunContext;
use super::limiter::{Limiter, Verdict};
use super::row::{CachedTemplate, PendingRow, QueuedRow};
use crate::outcome::Waited;

/// The rows of one agent that wait in one partition.
#[derive(Debug)]
pub(super) struct AgentQueue {
    pub(super) name: Arc<str>,
    /// Index of its limiter in the registry.
    pub(super) agent: usize,
    first: VecDeque<QueuedRow>,
    /// Retries, keyed by the instant at which they are due and their place in the plan.
    retries: BTreeMap<(Instant, u64), WaitingRetry>,
    /// The rows of rollouts that have not failed before.
    fresh: usize,
    template: Option<CachedTemplate>,
    /// Finished rollouts that were not reported to the limiter yet.
    finished: u64,
    /// The total time in which only rate limits or pauses held rows back.
    held: Duration,
    held_since: Option<Instant>,
}

/// A row that waits for a retry.
#[derive(Debug)]
struct WaitingRetry {
    /// The time for which rate limits and pauses had held back the agent's rows when this row was queued.
    held_before: Duration,
    row: PendingRow,
}

/// The time at which the next row of an agent may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readiness {
    /// Now. Holds the row's place in the plan.
    Now(u64),
    /// Not before this instant.
    At(Instant),
    /// When a call in flight ends.
    Starved,
    /// After rows of other partitions.
    OthersTurn,
    /// When a row is queued.
    Empty,
    /// The wait for an agent that was down is over. If it is abandoned, its rows stay pending.
    Judged(Verdict),
}

/// A row that may be sent.
#[derive(Debug)]
pub(super) enum Picked {
    First(QueuedRow),
    Retry(PendingRow),
}

impl Picked {
    pub(super) fn task_index(&self) -> i64 {
        match self {
            Self::First(row) => row.task_index(),
            Self::Retry(row) => row.key.task_index,
        }
    }

    /// Returns whether the rollout has not failed before.
    pub(super) fn is_fresh(&self) -> bool {
        match self {
            Self::First(row) => row.is_fresh,
            Self::Retry(row) => row.failures.is_untried(),
        }
    }

    /// Returns the bytes that the row's call takes while it is in flight.
    pub(super) fn memory(&self) -> u64 {
        match self {
            Self::First(row) => row.memory(),
            Self::Retry(row) => row.memory(),
        }
    }
}

impl AgentQueue {
    pub(super) fn new(name: Arc<str>, agent: usize) -> Self {
        Self {
            name,
            agent,
            first: VecDeque::new(),
            retries: BTreeMap::new(),
            fresh: 0,
            template: None,
            finished: 0,
            held: Duration::ZERO,
            held_since: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.first.len() + self.retries.len()
    }

    /// Returns whether no row waits and the limiter knows of all finished rollouts.
    pub(super) fn is_idle(&self) -> bool {
        self.len() == 0 && self.finished == 0
    }

    pub(super) fn push(&mut self, mut row: QueuedRow) {
        row.held_before = self.held;
        self.fresh += usize::from(row.is_fresh);
        self.first.push_back(row);
    }

    pub(super) fn retry(&mut self, row: PendingRow, due: Instant) {
        let held_before = self.held;
        self.fresh += usize::from(row.failures.is_untried());
        let place = (due, row.order);
        self.retries
            .insert(place, WaitingRetry { held_before, row });
    }

    pub(super) fn clear(&mut self) {
        self.first.clear();
        self.retries.clear();
        self.fresh = 0;
    }

    /// Notes that a rollout is finished, or stays pending for another process.
    pub(super) fn finished(&mut self) {
        self.finished += 1;
    }

    /// Tells the limiter about finished rollouts and waiting rows.
    pub(super) fn report(&mut self, now: Instant, limiter: &mut Limiter, seat: usize) {
        if limiter.is_abandoned() {
            self.clear();
        }
        limiter.finished(std::mem::take(&mut self.finished));
        limiter.set_rows(seat, self.len(), self.num_ready(now));
        limiter.set_fresh(seat, self.fresh);
    }

    /// Returns the number of rows that could be sent but for the limits. All due retries count as one.
    pub(super) fn num_ready(&self, now: Instant) -> usize {
        self.first.len() + usize::from(self.retry_due(now))
    }

    pub(super) fn readiness(
        &mut self,
        now: Instant,
        limiter: &mut Limiter,
        seat: usize,
    ) -> Readiness {
        let readiness = self.look(now, limiter, seat);
        let is_held = matches!(readiness, Readiness::At(_)) && self.num_ready(now) > 0;
        if self.len() > 0 {
            limiter.set_held(is_held);
        }
        match (is_held, self.held_since) {
            (true, None) => self.held_since = Some(now),
            (false, Some(since)) => {
                self.held += now.saturating_duration_since(since);
                self.held_since = None;
            }
            _ => {}
        }
        readiness
    }

    fn look(&mut self, now: Instant, limiter: &mut Limiter, seat: usize) -> Readiness {
        if self.len() == 0 {
            return Readiness::Empty;
        }
        if let Some(verdict) = limiter.judge(now) {
            if limiter.is_abandoned() {
                self.clear();
            }
            return Readiness::Judged(verdict);
        }
        if !limiter.has_room() {
            return Readiness::Starved;
        }
        let opens = limiter.opens_at(now);
        if opens > now {
            return Readiness::At(opens);
        }
        let order = match (self.first_retry(), self.first.front()) {
            (Some((due, order)), _) if due <= now => order,
            (_, Some(first)) => first.order,
            (Some((due, _)), None) => return Readiness::At(due),
            (None, None) => return Readiness::Empty,
        };
        if limiter.is_turn_of(seat) {
            Readiness::Now(order)
        } else {
            Readiness::OthersTurn
        }
    }

    /// Returns the instant at which the first retry is due, and its place in the plan.
    fn first_retry(&self) -> Option<(Instant, u64)> {
        self.retries.first_key_value().map(|(place, _)| *place)
    }

    fn retry_due(&self, now: Instant) -> bool {
        self.first_retry().is_some_and(|(due, _)| due <= now)
    }

    /// Returns the instant at which the next retry is due, if nothing could be sent before it.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let first = self.first_retry().filter(|_| self.num_ready(now) == 0);
        first.map(|(due, _)| due)
    }

    /// Takes the row that [`Self::readiness`] said may be sent now. `wants_fresh`: rather one that has not failed
    /// before, from anywhere in the queue, because neighbours may fail for the same reason.
    pub(super) fn pick(&mut self, now: Instant, wants_fresh: bool) -> Option<(Picked, Waited)> {
        let is_retry = self.retry_due(now) && (!wants_fresh || self.first.is_empty());
        let (row, since, held_before) = if is_retry {
            let ((due, _), retry) = self.retries.pop_first()?;
            (Picked::Retry(retry.row), due, retry.held_before)
        } else {
            let place = if wants_fresh {
                fastrand::usize(..self.first.len().max(1))
            } else {
                0
            };
            let queued = self.first.remove(place)?;
            let (since, held_before) = (queued.since, queued.held_before);
            (Picked::First(queued), since, held_before)
        };
        self.fresh -= usize::from(row.is_fresh());
        let waited = now.saturating_duration_since(since);
        let held = self.held.saturating_sub(held_before).min(waited);
        let waited = Waited {
            permit: waited.saturating_sub(held),
            rate: held,
        };
        Some((row, waited))
    }

    /// Returns the row with its request.
    pub(super) fn pending(&mut self, picked: Picked, context: &RunContext) -> PendingRow {
        match picked {
            Picked::First(row) => row.pending(&self.name, context, &mut self.template),
            Picked::Retry(row) => row,
        }
    }
}
