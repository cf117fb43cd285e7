//! Rate limits: [`LeakyBucket`] for requests per second and tokens per minute, and [`TokenEstimate`] of the tokens that a
//! rollout will use, which are known only afterwards.

use std::time::{Duration, Instant};

/// Tokens per minute may come in bursts of this many seconds' worth.
const TOKEN_BURST_SECONDS: f64 = 10.0;

/// The delay with which a timer may fire.
const LATE_SECONDS: f64 = 0.005;

/// The longest wait, a day: it keeps sums of instants in range.
const LONGEST_WAIT: f64 = 86_400.0;

/// A bucket that leaks at the allowed rate. Amounts taken fill it. The next may be taken if the bucket is not over
/// its brim, whatever its amount: so no amount is too large.
#[derive(Debug, Clone)]
pub(super) struct LeakyBucket {
    /// The allowed rate per second.
    rate: f64,
    burst: f64,
    /// The level at `since`, never below zero; the part above `burst` is a debt.
    level: f64,
    since: Option<Instant>,
}

impl LeakyBucket {
    /// Creates an empty bucket for `rate` per second (above zero). At most `burst` and the last amount come at once.
    pub(super) fn new(rate: f64, burst: f64) -> Self {
        Self {
            rate,
            burst,
            level: 0.0,
            since: None,
        }
    }

    /// Fills the bucket to its brim: a burst may have come from a process whose place this one takes.
    pub(super) fn filled(self) -> Self {
        Self {
            level: self.burst,
            since: Some(Instant::now()),
            ..self
        }
    }

    /// Creates a bucket for evenly spaced requests.
    pub(super) fn requests_per_second(rate: f64) -> Self {
        // A request passes when the one before has leaked away. At high rates some more pass at once, since the timer
        // for the next one fires up to milliseconds late.
        Self::new(rate, (rate * LATE_SECONDS - 0.5).max(0.0))
    }

    /// Creates a bucket for tokens, in bursts of ten seconds' worth.
    pub(super) fn tokens_per_minute(rate: f64) -> Self {
        let rate = rate / 60.0;
        Self::new(rate, rate * TOKEN_BURST_SECONDS)
    }

    /// Returns when the next amount may be taken: `now` if at once.
    pub(super) fn ready_at(&self, now: Instant) -> Instant {
        let wait = (self.level_at(now) - self.burst) / self.rate;
        // Rounded up: after a wait that ends a nanosecond early, another one would follow.
        match wait.min(LONGEST_WAIT) {
            wait if wait > 0.0 => now + Duration::from_secs_f64(wait) + Duration::from_nanos(1),
            _ => now,
        }
    }

    /// Takes `amount`, even if it is not time yet; a negative amount is given back.
    pub(super) fn take(&mut self, now: Instant, amount: f64) {
        self.level = (self.level_at(now) + amount).max(0.0);
        self.since = self.since.max(Some(now));
    }

    fn level_at(&self, now: Instant) -> f64 {
        let elapsed = self
            .since
            .map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        (self.level - self.rate * elapsed.as_secs_f64()).max(0.0)
    }
}

/// An estimate of the tokens of a rollout: a mean over finished rollouts, in which recent ones weigh more.
#[derive(Debug, Clone, Default)]
pub(super) struct TokenEstimate {
    mean: f64,
    finished: u32,
}

impl TokenEstimate {
    /// The first rollouts, up to this number, weigh the same, so that the very first does not dominate.
    const MEMORY: u32 = 50;

    /// Learns from a finished rollout.
    pub(super) fn finished(&mut self, tokens: u64) {
        self.finished = self.finished.saturating_add(1).min(Self::MEMORY);
        self.mean += (tokens as f64 - self.mean) / f64::from(self.finished);
    }

    /// Returns the tokens to reserve for the next rollout: 0 until one has finished.
    pub(super) fn tokens(&self) -> f64 {
        self.mean
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn requests_are_evenly_spaced() {
        let mut bucket = LeakyBucket::requests_per_second(4.0);
        let start = Instant::now();
        let mut now = start;
        for request in 0..100 {
            now = bucket.ready_at(now);
            let due = f64::from(request) * 0.25;
            assert!(
                ((now - start).as_secs_f64() - due).abs() < 1e-5,
                "{request}"
            );
            bucket.take(now, 1.0);
        }
    }

    #[test]
    fn an_idle_minute_does_not_save_up_requests() {
        let mut bucket = LeakyBucket::requests_per_second(4.0);
        let start = Instant::now();
        bucket.take(start, 1.0);
        let later = start + Duration::from_secs(60);
        assert_eq!(bucket.ready_at(later), later);
        bucket.take(later, 1.0);
        assert!(bucket.ready_at(later) > later + Duration::from_millis(249));
    }

    #[test]
    fn tokens_come_in_bursts_of_ten_seconds() {
        let mut bucket = LeakyBucket::tokens_per_minute(6000.0);
        let now = Instant::now();
        let mut taken = 0;
        while bucket.ready_at(now) == now {
            bucket.take(now, 300.0);
            taken += 300;
        }
        assert_eq!(taken, 1200, "1000, and the last one");
        let wait = bucket.ready_at(now) - now;
        assert!((wait.as_secs_f64() - 2.0).abs() < 1e-6, "{wait:?}");
    }

    #[test]
    fn a_correction_moves_the_next() {
        let mut bucket = LeakyBucket::new(100.0, 1000.0);
        let now = Instant::now();
        bucket.take(now, 1000.0);
        assert_eq!(bucket.ready_at(now), now);
        bucket.take(now, 500.0);
        let wait = bucket.ready_at(now) - now;
        assert!((wait.as_secs_f64() - 5.0).abs() < 1e-6, "{wait:?}");
        bucket.take(now, -500.0);
        assert_eq!(bucket.ready_at(now), now);
    }

    #[test]
    fn more_given_back_than_taken_is_not_credit() {
        let mut bucket = LeakyBucket::new(1.0, 10.0);
        let now = Instant::now();
        bucket.take(now, -1e9);
        bucket.take(now, 12.0);
        assert!(bucket.ready_at(now) > now);
    }

    #[test]
    fn a_debt_of_years_is_a_day_at_a_time() {
        let mut bucket = LeakyBucket::new(1e-9, 0.0);
        let now = Instant::now();
        bucket.take(now, 1e9);
        let wait = bucket.ready_at(now) - now;
        assert_eq!(wait.as_secs(), 86_400);
    }

    #[test]
    fn the_estimate_follows_what_rollouts_use() {
        let mut estimate = TokenEstimate::default();
        assert_eq!(estimate.tokens(), 0.0);
        estimate.finished(1000);
        estimate.finished(2000);
        assert_eq!(estimate.tokens(), 1500.0);
        for _ in 0..500 {
            estimate.finished(9000);
        }
        assert!((estimate.tokens() - 9000.0).abs() < 10.0);
    }

    proptest! {
        /// Takers that wait until they may: in no interval is more taken than the rate and the
        /// burst allow, but for the last one.
        #[test]
        fn no_interval_holds_more_than_rate_and_burst(
            rate in 0.1..1000.0_f64,
            burst in 0.0..100.0_f64,
            takes in prop::collection::vec((0_u64..2000, 0.0..50.0_f64), 1..100),
        ) {
            let mut bucket = LeakyBucket::new(rate, burst);
            let start = Instant::now();
            let mut now = start;
            let mut taken = Vec::new();
            for (idle, amount) in takes {
                now = bucket.ready_at(now + Duration::from_millis(idle));
                prop_assert_eq!(bucket.ready_at(now), now);
                bucket.take(now, amount);
                taken.push(((now - start).as_secs_f64(), amount));
            }
            for first in 0..taken.len() {
                let mut sum = 0.0;
                for (at, amount) in &taken[first..] {
                    let allowed = burst + rate * (at - taken[first].0);
                    prop_assert!(sum <= allowed + 1e-3, "{} > {}", sum, allowed);
                    sum += amount;
                }
            }
        }

        #[test]
        fn nobody_waits_longer_than_needed(
            rate in 0.1..1000.0_f64,
            amounts in prop::collection::vec(0.0..50.0_f64, 1..100),
        ) {
            let mut bucket = LeakyBucket::new(rate, 0.0);
            let start = Instant::now();
            let mut now = start;
            for amount in &amounts {
                now = bucket.ready_at(now);
                bucket.take(now, *amount);
            }
            let needed = amounts[..amounts.len() - 1].iter().sum::<f64>() / rate;
            prop_assert!(((now - start).as_secs_f64() - needed).abs() < 1e-3);
        }
    }
}
