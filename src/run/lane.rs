use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::adaptive::{AdaptiveLimit, Sample};
use super::breaker::{Admission, Breaker};
use super::bucket::{LeakyBucket, TokenEstimate};
use super::call::{Dispatch, OwedRow, Turn};
use super::context::RunContext;
use super::owed::{CachedTemplate, Queued};
use crate::agent::{AgentLimits, Reply};
use crate::config::Concurrency;
use crate::failure::{Budget, FailureClass};

/// A latency of which our own part is more than one in so many says nothing of the server.
const OWN_SHARE: u32 = 5;

/// The tokens of an answer count as those of so many minutes at most.
const MOST_MINUTES: f64 = 10.0;

/// The rows of one agent that wait for their turn, and what decides when it comes.
#[derive(Debug)]
pub(super) struct Lane {
    name: Arc<str>,
    fresh: VecDeque<Queued>,
    retries: BinaryHeap<Reverse<Retry>>,
    context: Arc<RunContext>,
    template: Option<CachedTemplate>,
    ceiling: Ceiling,
    told_limit: Option<usize>,
    in_flight: usize,
    /// Rollouts of this agent that are not finished, as far as it is known.
    outstanding: u64,
    requests: Option<LeakyBucket>,
    tokens: Option<LeakyBucket>,
    tokens_of_one: TokenEstimate,
    most_tokens: u64,
    /// The agent asked to be left alone until then.
    paused_until: Option<Instant>,
    breaker: Breaker,
    given_up: bool,
    /// Time in which rows were held back by rates or pauses alone.
    held: Duration,
    held_since: Option<Instant>,
}

#[derive(Debug)]
enum Ceiling {
    None,
    Fixed(usize),
    Auto(Box<AdaptiveLimit>),
}

/// A row that waits for another attempt.
#[derive(Debug)]
struct Retry {
    due: Instant,
    /// How long its lane had been held back when it was put here.
    held_before: Duration,
    row: OwedRow,
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

/// When the next row of a lane may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readiness {
    /// Now; its place in the plan.
    Now(u64),
    /// Not before this.
    At(Instant),
    /// When a call ends, or rows come.
    Later,
    /// Never: the agent has not answered for this long, and its rows were left owed.
    GivenUp(Duration),
}

/// What the end of a call says of its agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    None,
    /// It answers nothing any more.
    Down,
    /// It answers again.
    Back,
}

impl Lane {
    pub(super) fn new(name: Arc<str>, context: Arc<RunContext>, outstanding: u64) -> Self {
        let limits = context.agents.get(&name).map(|member| &member.limits);
        let ceiling = match limits.and_then(|limits| limits.concurrency) {
            None => Ceiling::None,
            Some(Concurrency::Fixed(calls)) => Ceiling::Fixed(calls),
            Some(Concurrency::Auto) => {
                Ceiling::Auto(Box::new(AdaptiveLimit::new(Concurrency::MOST)))
            }
        };
        let bucket = |rate: fn(&AgentLimits) -> Option<f64>, of: fn(f64) -> LeakyBucket| {
            limits.and_then(rate).map(of)
        };
        Self {
            name,
            fresh: VecDeque::new(),
            retries: BinaryHeap::new(),
            template: None,
            ceiling,
            told_limit: None,
            in_flight: 0,
            outstanding,
            requests: bucket(
                |limits| limits.requests_per_second,
                LeakyBucket::requests_per_second,
            ),
            tokens: bucket(
                |limits| limits.tokens_per_minute,
                LeakyBucket::tokens_per_minute,
            ),
            tokens_of_one: TokenEstimate::default(),
            most_tokens: limits
                .and_then(|limits| limits.tokens_per_minute)
                .map_or(u64::MAX, |rate| (rate * MOST_MINUTES) as u64),
            paused_until: None,
            breaker: Breaker::new(context.agent_patience),
            given_up: false,
            held: Duration::ZERO,
            held_since: None,
            context,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.fresh.len() + self.retries.len()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Calls that others must leave to this agent when `share` is its fair share.
    pub(super) fn reserved(&self, share: usize) -> usize {
        let share = match self.len() + self.in_flight {
            0 => 0,
            // One call probes whether it is back.
            _ if self.breaker.is_open() => 1,
            // What is held back by rates or pauses can't use more.
            _ if self.held_since.is_some() => self.ceiling(share).min(self.in_flight + 1),
            _ => self.ceiling(share),
        };
        share.min(usize::try_from(self.outstanding).unwrap_or(usize::MAX))
    }

    /// Calls that may be in flight, of `all` that the sweep may have.
    pub(super) fn ceiling(&self, all: usize) -> usize {
        match &self.ceiling {
            Ceiling::None => all,
            Ceiling::Fixed(calls) => *calls.min(&all),
            Ceiling::Auto(limit) => limit.limit().min(all),
        }
    }

    /// The limit that adapts, where it is another than when this was last asked.
    pub(super) fn new_limit(&mut self) -> Option<usize> {
        let Ceiling::Auto(limit) = &self.ceiling else {
            return None;
        };
        let limit = limit.limit();
        (self.told_limit.replace(limit) != Some(limit)).then_some(limit)
    }

    pub(super) fn push(&mut self, mut row: Queued) {
        if self.given_up {
            return;
        }
        row.held_before = self.held;
        self.fresh.push_back(row);
    }

    pub(super) fn retry(&mut self, row: OwedRow, due: Instant) {
        if !self.given_up {
            self.retries.push(Reverse(Retry {
                due,
                held_before: self.held,
                row,
            }));
        }
    }

    pub(super) fn clear(&mut self) {
        self.fresh.clear();
        self.retries.clear();
    }

    /// A rollout of this agent is finished, or left owed.
    pub(super) fn finished(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    pub(super) fn readiness(&mut self, now: Instant, ceiling: usize) -> Readiness {
        let readiness = self.look(now, ceiling);
        let is_held = matches!(readiness, Readiness::At(_))
            && (!self.fresh.is_empty() || self.retry_due(now));
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

    fn look(&mut self, now: Instant, ceiling: usize) -> Readiness {
        let admission = self.breaker.admission(now);
        if admission == Admission::GivenUp && self.len() > 0 {
            let since = self.breaker.open_since().unwrap_or(now);
            self.given_up = true;
            self.outstanding = 0;
            self.clear();
            return Readiness::GivenUp(now.saturating_duration_since(since));
        }
        if self.len() == 0 || self.in_flight >= ceiling {
            return Readiness::Later;
        }
        let admitted = match admission {
            Admission::Until(then) => then,
            _ => now,
        };
        let buckets = [&self.requests, &self.tokens];
        let wait = buckets.into_iter().flatten();
        let allowed = wait
            .map(|bucket| bucket.ready_at(now))
            .chain(self.paused_until)
            .fold(admitted, Instant::max);
        if allowed > now {
            return Readiness::At(allowed);
        }
        match (self.retries.peek(), self.fresh.front()) {
            (Some(Reverse(retry)), _) if retry.due <= now => Readiness::Now(retry.row.order),
            (_, Some(fresh)) => Readiness::Now(fresh.order),
            (Some(Reverse(retry)), None) => Readiness::At(retry.due),
            (None, None) => Readiness::Later,
        }
    }

    fn retry_due(&self, now: Instant) -> bool {
        let first = self.retries.peek();
        first.is_some_and(|Reverse(retry)| retry.due <= now)
    }

    /// The row that [`Self::readiness`] said may be sent now.
    pub(super) fn take(&mut self, now: Instant, all: usize) -> Option<Turn> {
        let (row, waited, rate_wait) = if self.retry_due(now) {
            let Reverse(Retry {
                due,
                held_before,
                row,
            }) = self.retries.pop()?;
            let waited = now.saturating_duration_since(due);
            let held = self.held.saturating_sub(held_before).min(waited);
            (row, waited, held)
        } else {
            let queued = self.fresh.pop_front()?;
            let waited = now.saturating_duration_since(queued.since);
            let held = self.held.saturating_sub(queued.held_before).min(waited);
            let row = queued.owed(&self.name, &self.context, &mut self.template)?;
            (row, waited, held)
        };
        let probe = self.breaker.admission(now) == Admission::Probe;
        if probe {
            self.breaker.probing(now);
        }
        let reserved_tokens = self.tokens_of_one.tokens();
        if let Some(bucket) = &mut self.requests {
            bucket.take(now, 1.0);
        }
        if let Some(bucket) = &mut self.tokens {
            bucket.take(now, reserved_tokens);
        }
        self.in_flight += 1;
        Some(Turn {
            row,
            permit_wait: waited.saturating_sub(rate_wait),
            rate_wait,
            concurrency_limit: self.ceiling(all),
            probe,
            reserved_tokens,
        })
    }

    /// Learns from a call that ended.
    pub(super) fn ended(&mut self, now: Instant, dispatch: &Dispatch, reply: &Reply) -> News {
        let in_flight = self.in_flight;
        self.in_flight = self.in_flight.saturating_sub(1);
        let tokens = match &reply.result {
            Ok(answer) => answer.fields.total_tokens,
            Err(_) => None,
        };
        let tokens = tokens.and_then(|tokens| u64::try_from(tokens).ok());
        // An answer that claims more than a limit of some minutes must not stop its agent for days.
        let tokens = tokens.map(|tokens| tokens.min(self.most_tokens));
        if let Some(tokens) = tokens {
            self.tokens_of_one.finished(tokens);
        }
        if let Some(bucket) = &mut self.tokens {
            bucket.correct(now, tokens.unwrap_or(0) as f64 - dispatch.reserved_tokens);
        }
        let failure = reply.result.as_ref().err();
        if let Some(wait) = failure.and_then(|failure| failure.retry_after) {
            self.paused_until = self.paused_until.max(Some(now + wait));
        }
        let congested = matches!(reply.http_status, Some(429 | 503));
        let says_something = congested
            || match failure.map(|failure| failure.class) {
                None | Some(FailureClass::AgentFlagged | FailureClass::NotPersisted) => true,
                Some(FailureClass::Data) => reply.http_status == Some(200),
                Some(_) => false,
            };
        // Time in which we were short of a core looks like a server that queues.
        let latency = reply.elapsed;
        let own = now.saturating_duration_since(dispatch.began + latency);
        let is_ours = own > latency / OWN_SHARE && !congested;
        if let Ceiling::Auto(limit) = &mut self.ceiling
            && says_something
            && !is_ours
        {
            limit.completed(
                now,
                Sample {
                    latency,
                    in_flight,
                    congested,
                },
            );
        }
        let was_open = self.breaker.is_open();
        match failure {
            Some(failure) if failure.class == FailureClass::Interrupted => {
                if dispatch.probe {
                    self.breaker.probe_dropped();
                }
            }
            Some(failure)
                if Budget::of(failure.class, reply.http_status) == Some(Budget::Infra) =>
            {
                let task = dispatch.row.task_index;
                self.breaker
                    .failed(now, task, failure.unreachable, dispatch.probe);
            }
            _ => self.breaker.answered(),
        }
        match (was_open, self.breaker.is_open()) {
            _ if self.given_up => News::None,
            (false, true) => News::Down,
            (true, false) => News::Back,
            _ => News::None,
        }
    }
}
