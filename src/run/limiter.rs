use std::time::{Duration, Instant};

use super::adaptive_concurrency::{AdaptiveLimit, FIRST_LIMIT, Sample};
use super::circuit_breaker::{Admission, Breaker, Cause, FailedCall};
use super::context::RunContext;
use super::first_answers::FirstAnswers;
use super::rate_limit::{LeakyBucket, TokenEstimate};
use crate::agent::{AgentLimits, Reply};
use crate::config::Concurrency;
use crate::retry::{Budget, FailureClass};

/// A latency is ignored if the collector's own share of it is more than one part in this many.
const OWN_SHARE: u32 = 5;

/// An answer counts for at most the tokens that this many minutes allow.
const MOST_MINUTES: f64 = 10.0;

/// The most calls by which a partition may be ahead of another one that could also send.
pub(super) const SLACK: u64 = 8;

/// Decides when calls to one agent may be sent, for all partitions: concurrency, rate limits, pauses, circuit breaker.
#[derive(Debug)]
pub(super) struct Limiter {
    limit: Limit,
    told_limit: Option<usize>,
    /// The calls that may be in flight, as the last [`Self::set_ceiling`] set it.
    ceiling: usize,
    in_flight: usize,
    /// Rollouts of this agent that are not finished. [`u64::MAX`] if unknown.
    outstanding: u64,
    requests: Option<LeakyBucket>,
    tokens: Option<LeakyBucket>,
    tokens_of_one: TokenEstimate,
    most_tokens: u64,
    /// The end of the pause that the agent's last `Retry-After` asked for.
    paused_until: Option<Instant>,
    breaker: Breaker,
    /// Whether the agent may be abandoned.
    has_breaker: bool,
    first_answers: FirstAnswers,
    /// Whether the agent's rows are no longer sent.
    is_abandoned: bool,
    /// Whether only rate limits or a pause held rows back at the last check.
    is_held: bool,
    /// The rows that wait, in all partitions.
    rows: usize,
    shares: Vec<Share>,
}

#[derive(Debug)]
enum Limit {
    None,
    Fixed(usize),
    Auto(Box<AdaptiveLimit>),
}

/// The share that one partition has of an agent.
#[derive(Debug, Default, Clone, Copy)]
struct Share {
    /// Rows that wait.
    rows: usize,
    /// The waiting rows that could be sent but for the limits.
    ready: usize,
    /// The waiting rows of rollouts that have not failed before.
    fresh: usize,
    in_flight: usize,
    /// The calls sent. A partition that gets its first rows starts from the lowest count of the others.
    sent: u64,
}

/// A call that a limiter granted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grant {
    /// Whether the call probes an agent whose circuit breaker is open.
    probe: bool,
    /// The tokens that were reserved for the call.
    reserved_tokens: f64,
    /// The number of the call, if its rollout has not failed before.
    number: Option<u64>,
}

/// A call that ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub(super) task_index: i64,
    pub(super) began: Instant,
    pub(super) grant: Grant,
}

/// What the end of a call changed for its agent.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    #[default]
    None,
    /// The breaker opened: the agent is down. It is probed for this long.
    Down { cause: Cause, patience: Duration },
    /// The breaker closed: the agent answers again.
    Back,
    /// The agent is abandoned, because this many first answers failed in the same way.
    Misconfigured { answers: u64 },
}

/// What follows from the silence of an agent whose breaker was open for as long as it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The agent is abandoned: its rows are no longer sent.
    Abandoned {
        cause: Cause,
        /// The time since the breaker opened.
        silent: Duration,
        has_answered: bool,
    },
    /// Only rows are left that failed before: they are sent until they have failed for good.
    Released,
}

impl Verdict {
    /// Returns what it says of an agent, given the `--agent-patience`.
    pub(super) fn text(self, patience: Duration) -> String {
        let (cause, silent, has_answered) = match self {
            Self::Abandoned {
                cause,
                silent,
                has_answered,
            } => (cause, silent, has_answered),
            Self::Released => {
                return "answers, and every rollout that is left fails: each is tried until its budget is spent"
                    .to_owned();
            }
        };
        let what = match cause {
            Cause::Unreachable => "could not be reached",
            Cause::Gateway | Cause::Agent => "has answered nothing but failures",
        };
        let patience = humantime::format_duration(patience);
        let bound = if has_answered {
            format!("--agent-patience {patience}")
        } else {
            format!(
                "an agent that never answered well gets an eighth of --agent-patience {patience}"
            )
        };
        let silent = match silent.as_secs() {
            0 => Duration::from_millis(silent.as_millis() as u64),
            seconds => Duration::from_secs(seconds),
        };
        format!(
            "{what} for {} ({bound}): the rest of its rollouts stays pending; `rollstream resume` tries again",
            humantime::format_duration(silent)
        )
    }
}

impl Limiter {
    pub(super) fn new(name: &str, context: &RunContext, outstanding: u64) -> Self {
        let limits = context.agents.get(name).map(|member| &member.limits);
        let limit = match limits.and_then(|limits| limits.concurrency) {
            None => Limit::None,
            Some(Concurrency::Fixed(calls)) => Limit::Fixed(calls),
            Some(Concurrency::Auto) => {
                let own = |limit| context.registry.own_part(limit);
                let limit = AdaptiveLimit::new(own(FIRST_LIMIT), own(Concurrency::MOST));
                Limit::Auto(Box::new(limit))
            }
        };
        let bucket = |rate: fn(&AgentLimits) -> Option<f64>, of: fn(f64) -> LeakyBucket| {
            let bucket = limits.and_then(rate).map(of);
            if context.registry.is_part() {
                bucket.map(LeakyBucket::filled)
            } else {
                bucket
            }
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
            breaker: Breaker::new(context.agent_patience.unwrap_or_default()),
            has_breaker: context.agent_patience.is_some(),
            first_answers: FirstAnswers::of(
                outstanding,
                limits.is_some_and(|limits| limits.budgets.data > 1),
            ),
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

    /// Returns the end of the pause that the agent asked for.
    pub(super) fn paused_until(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Sends nothing before this instant.
    pub(super) fn pause(&mut self, until: Instant) {
        self.paused_until = self.paused_until.max(Some(until));
    }

    /// Notes how many rows of a partition wait, and how many of them could be sent.
    pub(super) fn set_rows(&mut self, seat: usize, rows: usize, ready: usize) {
        let before = self.share(seat);
        let mut sent = before.sent;
        if before.ready == 0 && ready > 0 {
            // A partition gets no credit for the time in which it had nothing to send.
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

    /// Notes how many of the waiting rows of a partition are of rollouts that have not failed before.
    pub(super) fn set_fresh(&mut self, seat: usize, fresh: usize) {
        if let Some(share) = self.share_mut(seat) {
            share.fresh = fresh;
        }
    }

    fn has_fresh(&self) -> bool {
        self.shares.iter().any(|share| share.fresh > 0)
    }

    fn admission(&self, now: Instant) -> Admission {
        self.breaker.admission(now, self.has_fresh())
    }

    /// Returns whether the next row should be one that has not failed before.
    pub(super) fn wants_fresh(&self) -> bool {
        self.breaker.wants_fresh() || self.first_answers.are_suspicious()
    }

    /// Notes rollouts that are finished, or stay pending for another process.
    pub(super) fn finished(&mut self, rollouts: u64) {
        self.outstanding = self.outstanding.saturating_sub(rollouts);
    }

    /// Returns the calls that other agents must leave to this one, whose fair share is `share`.
    pub(super) fn reserved(&self, share: usize) -> usize {
        let share = match self.rows + self.in_flight {
            0 => 0,
            // One call probes whether it is back.
            _ if self.breaker.is_open() => 1,
            // Rows that rate limits or pauses hold back can't use more.
            _ if self.is_held => self.limit(share).min(self.in_flight + 1),
            _ => self.limit(share),
        };
        share.min(usize::try_from(self.outstanding).unwrap_or(usize::MAX))
    }

    /// Returns the calls that may be in flight, if the sweep may have `all`.
    pub(super) fn limit(&self, all: usize) -> usize {
        match &self.limit {
            Limit::None => all,
            Limit::Fixed(calls) => *calls.min(&all),
            Limit::Auto(limit) => limit.limit().min(all),
        }
    }

    /// Leaves calls to other agents: at most `all` may be in flight.
    pub(super) fn set_ceiling(&mut self, all: usize) {
        self.ceiling = self.limit(all);
    }

    /// Returns the adaptive limit, if it has changed since this was last called.
    pub(super) fn new_limit(&mut self) -> Option<usize> {
        let Limit::Auto(limit) = &self.limit else {
            return None;
        };
        let limit = limit.limit();
        (self.told_limit.replace(limit) != Some(limit)).then_some(limit)
    }

    /// Notes whether only rate limits or a pause hold rows back.
    pub(super) fn set_held(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Ends the wait for an agent that has not answered well for too long.
    pub(super) fn judge(&mut self, now: Instant) -> Option<Verdict> {
        if self.is_abandoned || self.admission(now) != Admission::Over {
            return None;
        }
        let (since, cause) = (self.breaker.open_since()?, self.breaker.cause()?);
        if !self.breaker.is_at_fault(self.has_fresh()) {
            self.breaker.release();
            return Some(Verdict::Released);
        }
        self.abandon();
        Some(Verdict::Abandoned {
            cause,
            silent: now.saturating_duration_since(since),
            has_answered: self.breaker.has_answered(),
        })
    }

    fn abandon(&mut self) {
        self.is_abandoned = true;
        self.outstanding = 0;
    }

    pub(super) fn has_room(&self) -> bool {
        self.in_flight < self.ceiling && !self.is_abandoned
    }

    /// Returns when rate limits, pauses and the circuit breaker let a call through: `now` or earlier if at once.
    pub(super) fn opens_at(&self, now: Instant) -> Instant {
        let admitted = match self.admission(now) {
            Admission::Until(then) => then,
            _ => now,
        };
        let buckets = [&self.requests, &self.tokens];
        let wait = buckets.into_iter().flatten();
        wait.map(|bucket| bucket.ready_at(now))
            .chain(self.paused_until)
            .fold(admitted, Instant::max)
    }

    /// Returns whether a partition has rows that could be sent but for the limits.
    pub(super) fn is_wanted_by(&self, seat: usize) -> bool {
        self.share(seat).ready > 0
    }

    /// Returns whether the next call is this partition's.
    ///
    /// Free permits go first to the partitions with fewer calls in flight that have rows: each gets its fair share,
    /// and others use the rest. If that decides nothing (there are fewer permits than partitions, or rate limits
    /// are the bottleneck), no partition may send much more than another.
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

    /// Grants a call, which is sent at once. `is_fresh`: its rollout has not failed before.
    pub(super) fn take(&mut self, now: Instant, seat: usize, is_fresh: bool) -> Grant {
        let probe = self.admission(now) == Admission::Probe;
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
            number: is_fresh.then(|| self.breaker.number()),
        }
    }

    /// Learns from a call that ended. Without a reply, it was dropped.
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
        // An answer that claims billions of tokens must not stop its agent for days.
        let tokens = tokens.map(|tokens| tokens.min(self.most_tokens));
        if let Some(tokens) = tokens {
            self.tokens_of_one.finished(tokens);
        }
        if let Some(bucket) = &mut self.tokens {
            bucket.take(now, tokens.unwrap_or(0) as f64 - call.grant.reserved_tokens);
        }
        let Some(reply) = reply else {
            if call.grant.probe {
                self.breaker.probe_dropped();
            }
            return Change::None;
        };
        let failure = reply.result.as_ref().err();
        if let Some(wait) = failure.and_then(|failure| failure.retry_after) {
            self.pause(now + wait);
        }
        self.adapt(now, in_flight, call.began, reply);
        if !self.has_breaker {
            return Change::None;
        }
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
                let failed = FailedCall {
                    task_index: call.task_index,
                    number: call.grant.number,
                    cause: Cause::of(failure, reply.http_status),
                    is_probe: call.grant.probe,
                };
                self.breaker.failed(now, failed);
            }
            _ => self.breaker.answered(),
        }
        if self.is_abandoned {
            return Change::None;
        }
        let (is_first, sent) = (call.grant.number.is_some(), self.breaker.numbers());
        let answers = self
            .first_answers
            .add(call.task_index, is_first, sent, reply);
        if let Some(answers) = answers {
            self.abandon();
            return Change::Misconfigured { answers };
        }
        match (was_open, self.breaker.cause()) {
            (false, Some(cause)) => Change::Down {
                cause,
                patience: self.breaker.patience(self.has_fresh()),
            },
            (true, None) => Change::Back,
            _ => Change::None,
        }
    }

    /// Tells the adaptive limit about a reply, if it depends on the server's load.
    fn adapt(&mut self, now: Instant, in_flight: usize, began: Instant, reply: &Reply) {
        let Limit::Auto(limit) = &mut self.limit else {
            return;
        };
        let congested = matches!(reply.http_status, Some(429 | 503));
        let is_served = match reply.result.as_ref().err().map(|failure| failure.class) {
            Some(FailureClass::Data) => reply.http_status == Some(200),
            class => class.is_none_or(FailureClass::is_answered),
        };
        // Time in which the collector lacked a core looks like queueing at the server.
        let latency = reply.elapsed;
        let own = now.saturating_duration_since(began + latency);
        let is_ours = own > latency / OWN_SHARE && !congested;
        if (is_served || congested) && !is_ours {
            let sample = Sample {
                latency,
                in_flight,
                congested,
            };
            limit.completed(now, sample);
        }
    }
}
