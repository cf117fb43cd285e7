use std::time::{Duration, Instant};

use super::adaptive_concurrency::{AdaptiveLimit, Sample};
use super::circuit_breaker::{Admission, Breaker};
use super::context::RunContext;
use super::rate_limit::{LeakyBucket, TokenEstimate};
use crate::agent::{AgentLimits, Reply};
use crate::config::Concurrency;
use crate::retry::{Budget, FailureClass};

/// A latency of which our own part is more than one in so many says nothing of the server.
const OWN_SHARE: u32 = 5;

/// The tokens of an answer count as those of so many minutes at most.
const MOST_MINUTES: f64 = 10.0;

/// A partition may have sent so many calls more than another that could send as well.
pub(super) const SLACK: u64 = 8;

/// Decides when calls to one agent may be sent. All partitions share it.
#[derive(Debug)]
pub(super) struct Limiter {
    limit: Limit,
    told_limit: Option<usize>,
    /// Calls that may be in flight, as [`Self::set_ceiling`] had it last.
    ceiling: usize,
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
    /// It is not waited for any more.
    is_abandoned: bool,
    /// Rates or a pause alone held back rows when somebody last looked.
    is_held: bool,
    /// Rows that wait, in all partitions.
    rows: usize,
    shares: Vec<Share>,
}

#[derive(Debug)]
enum Limit {
    None,
    Fixed(usize),
    Auto(Box<AdaptiveLimit>),
}

/// What one partition has of an agent.
#[derive(Debug, Default, Clone, Copy)]
struct Share {
    /// Rows that wait.
    rows: usize,
    /// Those of them whose turn has come but for the limits.
    ready: usize,
    in_flight: usize,
    /// Calls sent, at least as many as others had sent when its rows came.
    sent: u64,
}

/// What a limiter grants a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grant {
    /// It asks whether an agent that was taken to be down is back.
    pub(super) probe: bool,
    /// Tokens that were set aside for it.
    pub(super) reserved_tokens: f64,
}

/// A call that ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub(super) task_index: i64,
    pub(super) began: Instant,
    pub(super) grant: Grant,
}

/// What the end of a call says of its agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    None,
    /// It answers nothing any more.
    Down,
    /// It answers again.
    Back,
}

impl Limiter {
    pub(super) fn new(name: &str, context: &RunContext, outstanding: u64) -> Self {
        let limits = context.agents.get(name).map(|member| &member.limits);
        let limit = match limits.and_then(|limits| limits.concurrency) {
            None => Limit::None,
            Some(Concurrency::Fixed(calls)) => Limit::Fixed(calls),
            Some(Concurrency::Auto) => Limit::Auto(Box::new(AdaptiveLimit::new(Concurrency::MOST))),
        };
        let bucket = |rate: fn(&AgentLimits) -> Option<f64>, of: fn(f64) -> LeakyBucket| {
            limits.and_then(rate).map(of)
        };
        Self {
            limit,
            told_limit: None,
            ceiling: 0,
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
            is_abandoned: false,
            is_held: false,
            rows: 0,
            shares: Vec::new(),
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.is_abandoned
    }

    fn share(&self, seat: usize) -> Share {
        self.shares.get(seat).copied().unwrap_or_default()
    }

    fn share_mut(&mut self, seat: usize) -> Option<&mut Share> {
        if self.shares.len() <= seat {
            self.shares.resize(seat + 1, Share::default());
        }
        self.shares.get_mut(seat)
    }

    /// A partition has so many rows that wait.
    pub(super) fn set_rows(&mut self, seat: usize, rows: usize, ready: usize) {
        let before = self.share(seat);
        let mut sent = before.sent;
        if before.ready == 0 && ready > 0 {
            // What it did not use while it had nothing to send is not made up for.
            let waiting = self.shares.iter().filter(|share| share.ready > 0);
            sent = sent.max(waiting.map(|share| share.sent).min().unwrap_or(0));
        }
        self.rows = (self.rows + rows).saturating_sub(before.rows);
        if let Some(share) = self.share_mut(seat) {
            *share = Share {
                rows,
                ready,
                sent,
                ..before
            };
        }
    }

    /// So many rollouts are finished, or stay pending for another process.
    pub(super) fn finished(&mut self, rollouts: u64) {
        self.outstanding = self.outstanding.saturating_sub(rollouts);
    }

    /// Calls that others must leave to this agent when `share` is its fair share.
    pub(super) fn reserved(&self, share: usize) -> usize {
        let share = match self.rows + self.in_flight {
            0 => 0,
            // One call probes whether it is back.
            _ if self.breaker.is_open() => 1,
            // What is held back by rates or pauses can't use more.
            _ if self.is_held => self.limit(share).min(self.in_flight + 1),
            _ => self.limit(share),
        };
        share.min(usize::try_from(self.outstanding).unwrap_or(usize::MAX))
    }

    /// Calls that may be in flight, of `all` that the sweep may have.
    pub(super) fn limit(&self, all: usize) -> usize {
        match &self.limit {
            Limit::None => all,
            Limit::Fixed(calls) => *calls.min(&all),
            Limit::Auto(limit) => limit.limit().min(all),
        }
    }

    /// At most so many calls may be in flight for the sake of other agents.
    pub(super) fn set_ceiling(&mut self, all: usize) {
        self.ceiling = self.limit(all);
    }

    /// The limit that adapts, where it is another than when this was last asked.
    pub(super) fn new_limit(&mut self) -> Option<usize> {
        let Limit::Auto(limit) = &self.limit else {
            return None;
        };
        let limit = limit.limit();
        (self.told_limit.replace(limit) != Some(limit)).then_some(limit)
    }

    /// Rates or a pause alone hold back the rows of somebody who looks.
    pub(super) fn set_held(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Gives up waiting for an agent that has not answered for too long; gives for how long.
    pub(super) fn abandon(&mut self, now: Instant) -> Option<Duration> {
        if self.is_abandoned || self.breaker.admission(now) != Admission::GivenUp {
            return None;
        }
        let since = self.breaker.open_since().unwrap_or(now);
        self.is_abandoned = true;
        self.outstanding = 0;
        Some(now.saturating_duration_since(since))
    }

    pub(super) fn has_room(&self) -> bool {
        self.in_flight < self.ceiling && !self.is_abandoned
    }

    /// When rates, pauses and the circuit breaker let a call through; `now` or earlier if at once.
    pub(super) fn opens_at(&self, now: Instant) -> Instant {
        let admitted = match self.breaker.admission(now) {
            Admission::Until(then) => then,
            _ => now,
        };
        let buckets = [&self.requests, &self.tokens];
        let wait = buckets.into_iter().flatten();
        wait.map(|bucket| bucket.ready_at(now))
            .chain(self.paused_until)
            .fold(admitted, Instant::max)
    }

    /// Whether a partition has rows that could be sent if the limits let it.
    pub(super) fn is_wanted_by(&self, seat: usize) -> bool {
        self.share(seat).ready > 0
    }

    /// Whether the next call is this partition's.
    ///
    /// Free places go first to partitions with fewer calls in flight, as far as they have rows: each
    /// gets its fair share, and what one does not use goes to the others. Where that says nothing,
    /// since there are fewer places than partitions or since rates and not places are what is short,
    /// nobody may send much more than others.
    pub(super) fn is_turn_of(&self, seat: usize) -> bool {
        let own = self.share(seat);
        let is_rated = self.requests.is_some() || self.tokens.is_some();
        let mut claims = 0;
        for (other, share) in self.shares.iter().enumerate() {
            if other == seat || share.ready == 0 {
                continue;
            }
            let lags = share.sent + SLACK <= own.sent;
            if is_rated && lags && share.in_flight <= own.in_flight {
                return false;
            }
            claims += match own.in_flight.saturating_sub(share.in_flight) {
                0 => usize::from(lags && share.in_flight == 0),
                more => more.min(share.ready),
            };
        }
        self.ceiling.saturating_sub(self.in_flight) > claims
    }

    /// Grants a call that is sent now.
    pub(super) fn take(&mut self, now: Instant, seat: usize) -> Grant {
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
        if let Some(share) = self.share_mut(seat) {
            share.in_flight += 1;
            share.sent += 1;
        }
        Grant {
            probe,
            reserved_tokens,
        }
    }

    /// Learns from a call that ended; without a reply it was dropped.
    pub(super) fn ended(
        &mut self,
        now: Instant,
        seat: usize,
        call: &Ended,
        reply: Option<&Reply>,
    ) -> Change {
        let in_flight = self.in_flight;
        self.in_flight = self.in_flight.saturating_sub(1);
        if let Some(share) = self.share_mut(seat) {
            share.in_flight = share.in_flight.saturating_sub(1);
        }
        let answer = reply.and_then(|reply| reply.result.as_ref().ok());
        let tokens = answer.and_then(|answer| answer.fields.total_tokens);
        let tokens = tokens.and_then(|tokens| u64::try_from(tokens).ok());
        // An answer that claims more than a limit of some minutes must not stop its agent for days.
        let tokens = tokens.map(|tokens| tokens.min(self.most_tokens));
        if let Some(tokens) = tokens {
            self.tokens_of_one.finished(tokens);
        }
        if let Some(bucket) = &mut self.tokens {
            bucket.correct(now, tokens.unwrap_or(0) as f64 - call.grant.reserved_tokens);
        }
        let Some(reply) = reply else {
            if call.grant.probe {
                self.breaker.probe_dropped();
            }
            return Change::None;
        };
        let failure = reply.result.as_ref().err();
        if let Some(wait) = failure.and_then(|failure| failure.retry_after) {
            self.paused_until = self.paused_until.max(Some(now + wait));
        }
        self.adapt(now, in_flight, call.began, reply);
        let was_open = self.breaker.is_open();
        match failure {
            Some(failure) if failure.class == FailureClass::Interrupted => {
                if call.grant.probe {
                    self.breaker.probe_dropped();
                }
            }
            Some(failure)
                if Budget::of(failure.class, reply.http_status) == Some(Budget::Infra) =>
            {
                let probe = call.grant.probe;
                self.breaker
                    .failed(now, call.task_index, failure.unreachable, probe);
            }
            _ => self.breaker.answered(),
        }
        match (was_open, self.breaker.is_open()) {
            _ if self.is_abandoned => Change::None,
            (false, true) => Change::Down,
            (true, false) => Change::Back,
            _ => Change::None,
        }
    }

    /// Has the limit that adapts learn from a reply, if it says something of the server.
    fn adapt(&mut self, now: Instant, in_flight: usize, began: Instant, reply: &Reply) {
        let Limit::Auto(limit) = &mut self.limit else {
            return;
        };
        let congested = matches!(reply.http_status, Some(429 | 503));
        let says_something = congested
            || match reply.result.as_ref().err().map(|failure| failure.class) {
                None | Some(FailureClass::AgentFlagged | FailureClass::NotPersisted) => true,
                Some(FailureClass::Data) => reply.http_status == Some(200),
                Some(_) => false,
            };
        // Time in which we were short of a core looks like a server that queues.
        let latency = reply.elapsed;
        let own = now.saturating_duration_since(began + latency);
        let is_ours = own > latency / OWN_SHARE && !congested;
        if says_something && !is_ours {
            limit.completed(
                now,
                Sample {
                    latency,
                    in_flight,
                    congested,
                },
            );
        }
    }
}
