use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::call::PendingRow;
use super::context::RunContext;
use super::limiter::Limiter;
use super::pending::{CachedTemplate, Queued};

/// The rows of one agent that wait for their turn in one partition.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) name: Arc<str>,
    /// The place of its limiter.
    pub(super) agent: usize,
    fresh: VecDeque<Queued>,
    retries: BinaryHeap<Reverse<Retry>>,
    template: Option<CachedTemplate>,
    /// Rollouts that were finished and that the limiter does not know of yet.
    finished: u64,
    /// Time in which rows were held back by rates or pauses alone.
    held: Duration,
    held_since: Option<Instant>,
}

/// A row that waits for another attempt.
#[derive(Debug)]
struct Retry {
    due: Instant,
    /// How long its agent's rows had been held back when it was put here.
    held_before: Duration,
    row: PendingRow,
}

impl PartialEq for Retry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Retry {}

impl PartialOrd for Retry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Retry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.row.order).cmp(&(other.due, other.row.order))
    }
}

/// When the next row of an agent may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readiness {
    /// Now; its place in the plan.
    Now(u64),
    /// Not before this.
    At(Instant),
    /// When there is a place for a call.
    Starved,
    /// After those of other partitions.
    OthersTurn,
    /// When rows come.
    Empty,
    /// Never: the agent has not answered for this long, and its rows stay pending.
    Abandoned(Duration),
}

/// A row whose turn has come.
#[derive(Debug)]
pub(super) enum Picked {
    Fresh(Queued),
    Again(PendingRow),
}

/// How long a row waited.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waited {
    /// For a place.
    pub(super) permit: Duration,
    /// Since rates or a pause held it back.
    pub(super) rate: Duration,
}

impl Picked {
    pub(super) fn task_index(&self) -> i64 {
        match self {
            Self::Fresh(row) => row.task_index(),
            Self::Again(row) => row.task_index,
        }
    }

    /// Bytes that its call takes while it is in flight.
    pub(super) fn memory(&self) -> u64 {
        match self {
            Self::Fresh(row) => row.memory(),
            Self::Again(row) => row.memory(),
        }
    }
}

impl Waiting {
    pub(super) fn new(name: Arc<str>, agent: usize) -> Self {
        Self {
            name,
            agent,
            fresh: VecDeque::new(),
            retries: BinaryHeap::new(),
            template: None,
            finished: 0,
            held: Duration::ZERO,
            held_since: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.fresh.len() + self.retries.len()
    }

    /// No row waits, and the limiter knows of all that were finished.
    pub(super) fn is_idle(&self) -> bool {
        self.len() == 0 && self.finished == 0
    }

    pub(super) fn push(&mut self, mut row: Queued) {
        row.held_before = self.held;
        self.fresh.push_back(row);
    }

    pub(super) fn retry(&mut self, row: PendingRow, due: Instant) {
        self.retries.push(Reverse(Retry {
            due,
            held_before: self.held,
            row,
        }));
    }

    pub(super) fn clear(&mut self) {
        self.fresh.clear();
        self.retries.clear();
    }

    /// A rollout is finished, or stays pending for another process.
    pub(super) fn finished(&mut self) {
        self.finished += 1;
    }

    /// Tells the limiter what it has to know.
    pub(super) fn report(&mut self, now: Instant, limiter: &mut Limiter, seat: usize) {
        if limiter.is_abandoned() {
            self.clear();
        }
        limiter.finished(std::mem::take(&mut self.finished));
        limiter.set_rows(seat, self.len(), self.num_ready(now));
    }

    /// Rows whose turn has come but for the limits; of the retries one counts for all.
    pub(super) fn num_ready(&self, now: Instant) -> usize {
        self.fresh.len() + usize::from(self.retry_due(now))
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
        if let Some(silent) = limiter.abandon(now) {
            self.clear();
            return Readiness::Abandoned(silent);
        }
        if !limiter.has_room() {
            return Readiness::Starved;
        }
        let opens = limiter.opens_at(now);
        if opens > now {
            return Readiness::At(opens);
        }
        let order = match (self.retries.peek(), self.fresh.front()) {
            (Some(Reverse(retry)), _) if retry.due <= now => retry.row.order,
            (_, Some(fresh)) => fresh.order,
            (Some(Reverse(retry)), None) => return Readiness::At(retry.due),
            (None, None) => return Readiness::Empty,
        };
        match limiter.is_turn_of(seat) {
            true => Readiness::Now(order),
            false => Readiness::OthersTurn,
        }
    }

    fn retry_due(&self, now: Instant) -> bool {
        let first = self.retries.peek();
        first.is_some_and(|Reverse(retry)| retry.due <= now)
    }

    /// When the next retry is due, where nothing could be sent before it.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let first = self.retries.peek().filter(|_| self.num_ready(now) == 0);
        first.map(|Reverse(retry)| retry.due)
    }

    /// The row that [`Self::readiness`] said may be sent now.
    pub(super) fn pick(&mut self, now: Instant) -> Option<(Picked, Waited)> {
        let (row, since, held_before) = if self.retry_due(now) {
            let Reverse(retry) = self.retries.pop()?;
            (Picked::Again(retry.row), retry.due, retry.held_before)
        } else {
            let queued = self.fresh.pop_front()?;
            let (since, held_before) = (queued.since, queued.held_before);
            (Picked::Fresh(queued), since, held_before)
        };
        let waited = now.saturating_duration_since(since);
        let held = self.held.saturating_sub(held_before).min(waited);
        let waited = Waited {
            permit: waited.saturating_sub(held),
            rate: held,
        };
        Some((row, waited))
    }

    /// The row with its request.
    pub(super) fn pending(&mut self, picked: Picked, context: &RunContext) -> PendingRow {
        match picked {
            Picked::Fresh(row) => row.pending(&self.name, context, &mut self.template),
            Picked::Again(row) => row,
        }
    }
}
