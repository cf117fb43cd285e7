//! [`AdaptiveLimit`]: the number of calls in flight to an agent with `concurrency = auto`. It searches for the number
//! that the server can work on at once, from refusals and from the response of latency to load.
//!
//! The limit doubles until the first sign of congestion, then grows by addition. A server that refuses calls shows its
//! capacity by those that it accepted. A server that queues calls shows it by latency: beyond its capacity, latency is
//! proportional to calls in flight, so the capacity is `limit / ratio`, where `ratio` is latency over latency without a
//! queue. Only ratios are compared, so calls may take milliseconds or hours.
//!
//! Latency also grows if tasks get slower, and noise can look like growth. So every decrease for latency is a trial: if
//! latency does not fall with the limit, the limit was not the cause. Then the limit returns to where it was, and the
//! baseline becomes the current latency.

use std::time::{Duration, Instant};

pub(super) const FIRST_LIMIT: usize = 16;

/// A refusal multiplies the limit by this factor.
const REFUSED_FACTOR: f64 = 0.9;

/// A decrease for latency multiplies the estimated capacity by this factor, so that an existing queue
/// drains and the baseline is measured without a queue.
const DRAIN_FACTOR: f64 = 0.92;

/// The server is assumed to queue calls above this ln of the latency ratio.
const QUEUES: f64 = 0.1;

/// Growth may speed up below this ln of the latency ratio, and latency counts as that of a server without a queue.
const CALM: f64 = 0.07;

/// A window is precise if the standard error of its mean ln latency is at most this.
const STANDARD_ERROR: f64 = 0.0375;

/// A short, imprecise window lowers the limit only if the excess is certain by this many standard errors.
const BEYOND_DOUBT: f64 = 3.0;

/// A window is long at this many times the limit, and then decides even if imprecise: noise must not end the search.
const PATIENCE: f64 = 4.0;

/// A long, imprecise window lowers the limit if the excess is certain by this many standard errors.
const DOUBT: f64 = 1.5;

/// A window has at least this many calls, however low the limit is.
const LEAST_WINDOW: f64 = 4.0;

/// The part of a decrease that must show in latency if the limit was the cause.
const CAUSED: f64 = 0.5;

/// After this many decreases that did not show in latency, the calls themselves are assumed to be slower.
const INNOCENT: u32 = 2;

/// Replaces `INNOCENT` while latency still rises: latency that grows for other reasons must not take
/// the limit to 1.
const INNOCENT_AT_LAST: u32 = 4;

/// The least weight of a calm window in the baseline, so that the baseline follows a slow drift.
const DRIFT: f64 = 0.05;

/// The least weight in the baseline of a window just after a decrease, in which there can be no queue.
const DRAINED: f64 = 0.5;

/// The part of the limit that one window adds at most.
const FASTEST_GROWTH: f64 = 1.0 / 8.0;

/// The limit holds back calls if at least this share of it is in flight.
const USED: f64 = 0.9;

/// A call that ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// From dispatch to the end of the call.
    pub(super) latency: Duration,
    /// Calls of the agent in flight when it ended, itself included.
    pub(super) in_flight: usize,
    /// Whether the server refused the call because of load: status 429 or 503.
    pub(super) congested: bool,
}

/// A limit of calls in flight that follows the capacity of a server.
#[derive(Debug)]
pub(super) struct AdaptiveLimit {
    limit: f64,
    max: f64,
    /// Below this the limit doubles per window.
    double_below: f64,
    /// The amount that the next window adds to the limit.
    step: f64,
    epoch: Option<Epoch>,
    /// Completions to ignore: their calls were sent under another limit.
    stale: usize,
    window: Window,
    baseline: Option<Mean>,
    trial: Option<Trial>,
}

/// The calls that were in flight at the last decrease. Their refusals cause no further decrease; their number tells how
/// many calls were accepted.
#[derive(Debug)]
struct Epoch {
    ends: Instant,
    in_flight: usize,
    refused: usize,
}

/// Decreases for latency whose effect is not known yet.
#[derive(Debug)]
struct Trial {
    falls: u32,
    /// The limit before the first decrease.
    limit: f64,
    /// The mean ln latency before the last decrease.
    mean: f64,
    /// ln of the factor by which the last decrease divided the limit.
    fall: f64,
}

/// A mean of ln latency in seconds.
#[derive(Debug, Clone, Copy)]
struct Mean {
    value: f64,
    /// Variance of `value`, not of the latencies.
    variance: f64,
}

impl Mean {
    /// Returns the mean of both, weighted by precision; the weight of `other` is at least `least`.
    fn combine(self, other: Mean, least: f64) -> Mean {
        let variance = self.variance + other.variance;
        let weight = if variance > 0.0 {
            (self.variance / variance).max(least)
        } else {
            least
        };
        Mean {
            value: self.value + weight * (other.value - self.value),
            variance: (1.0 - weight).powi(2) * self.variance + weight.powi(2) * other.variance,
        }
    }
}

/// The calls answered since the last decision about the limit.
#[derive(Debug, Default)]
struct Window {
    count: f64,
    mean: f64,
    squares: f64,
    peak: usize,
}

impl Window {
    fn add(&mut self, sample: Sample) {
        // Welford's algorithm.
        let value = sample
            .latency
            .max(Duration::from_nanos(1))
            .as_secs_f64()
            .ln();
        self.count += 1.0;
        let off = value - self.mean;
        self.mean += off / self.count;
        self.squares += off * (value - self.mean);
        self.peak = self.peak.max(sample.in_flight);
    }

    fn mean(&self) -> Mean {
        let variance = self.squares / (self.count - 1.0).max(1.0);
        Mean {
            value: self.mean,
            variance: variance / self.count.max(1.0),
        }
    }
}

impl AdaptiveLimit {
    /// Creates a limit that starts at `first` and never exceeds `max` (at least 1).
    pub(super) fn new(first: usize, max: usize) -> Self {
        let max = max.max(1) as f64;
        let first = (first.max(1) as f64).min(max);
        Self {
            limit: first,
            max,
            double_below: f64::INFINITY,
            step: 1.0,
            epoch: None,
            stale: first as usize,
            window: Window::default(),
            baseline: None,
            trial: None,
        }
    }

    /// Calls that may be in flight, at least 1.
    pub(super) fn limit(&self) -> usize {
        self.limit as usize
    }

    /// Learns from a call that ended at `now`. Callers leave out calls that say nothing about the server's
    /// capacity: calls that were cut off, or that never reached the server.
    pub(super) fn completed(&mut self, now: Instant, sample: Sample) {
        if sample.congested {
            self.refused(now, sample);
        } else if self.stale > 0 {
            self.stale -= 1;
        } else {
            self.window.add(sample);
            if self.window.count >= (self.limit / 2.0).max(LEAST_WINDOW) {
                self.judge(now, sample.in_flight);
            }
        }
    }

    fn refused(&mut self, now: Instant, sample: Sample) {
        let sent = now.checked_sub(sample.latency);
        match &mut self.epoch {
            Some(epoch) if sent.is_none_or(|sent| sent <= epoch.ends) => epoch.refused += 1,
            _ => {
                self.double_below = self.limit / 2.0;
                self.decrease(now, sample.in_flight, self.limit * REFUSED_FACTOR);
                self.trial = None;
                // After a pause, all calls are sent at once, and the short ones end first.
                self.stale += self.limit();
                if let Some(epoch) = &mut self.epoch {
                    epoch.refused = 1;
                }
            }
        }
        if let Some(epoch) = &self.epoch {
            let accepted = epoch.in_flight.saturating_sub(epoch.refused);
            self.limit = self.limit.min(accepted.max(1) as f64);
        }
    }

    /// Raises or lowers the limit once the window has enough calls.
    fn judge(&mut self, now: Instant, in_flight: usize) {
        let mean = self.window.mean();
        let Some(baseline) = self.baseline else {
            self.baseline = Some(mean);
            return self.grow();
        };
        let error = (mean.variance + baseline.variance).sqrt();
        let precise = mean.variance.sqrt() <= STANDARD_ERROR;
        let enough = precise || self.window.count >= PATIENCE * self.limit.max(LEAST_WINDOW);
        if self.trial.is_some() && !enough {
            return;
        }
        let trial = self.trial.take();
        let drained = trial.is_some();
        let mut suspect = None;
        if let Some(trial) = trial {
            let fell = trial.mean - mean.value;
            let rises = fell < -QUEUES.max(2.0 * error);
            if fell < CAUSED * trial.fall {
                if trial.falls >= if rises { INNOCENT_AT_LAST } else { INNOCENT } {
                    return self.acquit(mean, trial.limit);
                }
                suspect = Some(trial);
            }
        }
        let excess = mean.value - baseline.value;
        let margin = match () {
            () if precise => 0.0,
            () if enough => DOUBT * error,
            () => BEYOND_DOUBT * error,
        };
        if excess > QUEUES + margin {
            if self.is_used() {
                self.drain(now, in_flight, mean.value, excess, suspect);
            } else {
                self.window = Window::default();
            }
        } else if enough
            || excess + error <= QUEUES
            || excess <= QUEUES && self.limit < self.double_below
        {
            let least = match () {
                () if drained => DRAINED,
                () if excess <= CALM => DRIFT,
                () => 0.0,
            };
            self.baseline = Some(baseline.combine(mean, least));
            if excess > CALM {
                self.step = 1.0;
            }
            self.grow();
        }
    }

    /// Lowers the limit to slightly below the capacity that latency suggests.
    fn drain(
        &mut self,
        now: Instant,
        in_flight: usize,
        mean: f64,
        excess: f64,
        suspect: Option<Trial>,
    ) {
        let fall = excess - DRAIN_FACTOR.ln();
        self.trial = Some(Trial {
            falls: suspect.as_ref().map_or(0, |trial| trial.falls) + 1,
            limit: suspect.map_or(self.limit, |trial| trial.limit),
            mean,
            fall,
        });
        self.double_below = 0.0;
        self.decrease(now, in_flight, self.limit * (-fall).exp());
    }

    /// Restores the limit, which did not cause the growth in latency, and sets a new baseline.
    fn acquit(&mut self, mean: Mean, limit: f64) {
        self.baseline = Some(mean);
        self.limit = self.limit.max(limit);
        self.stale = self.limit();
        self.window = Window::default();
    }

    fn is_used(&self) -> bool {
        self.window.peak as f64 >= USED * self.limit.floor()
    }

    fn grow(&mut self) {
        if self.is_used() && self.limit < self.max {
            self.stale = self.limit();
            self.limit = if self.limit < self.double_below {
                (self.limit * 2.0).min(self.double_below.max(self.limit + 1.0))
            } else {
                let step = self.step.min(self.limit * FASTEST_GROWTH).max(1.0);
                self.step += 1.0;
                self.limit + step
            }
            .min(self.max);
        }
        self.window = Window::default();
    }

    fn decrease(&mut self, now: Instant, in_flight: usize, limit: f64) {
        self.limit = limit.max(1.0);
        self.step = 1.0;
        self.stale = in_flight;
        self.window = Window::default();
        self.epoch = Some(Epoch {
            ends: now,
            in_flight,
            refused: 0,
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(latency: u64, in_flight: usize, congested: bool) -> Sample {
        Sample {
            latency: Duration::from_millis(latency),
            in_flight,
            congested,
        }
    }

    #[test]
    fn begins_at_16_or_the_maximum() {
        assert_eq!(AdaptiveLimit::new(FIRST_LIMIT, 1000).limit(), 16);
        assert_eq!(AdaptiveLimit::new(FIRST_LIMIT, 5).limit(), 5);
        assert_eq!(AdaptiveLimit::new(FIRST_LIMIT, 0).limit(), 1);
    }

    #[test]
    fn doubles_until_the_first_congestion() {
        let mut limit = AdaptiveLimit::new(FIRST_LIMIT, 1000);
        let now = Instant::now();
        let mut seen = vec![limit.limit()];
        while limit.limit() < 256 {
            limit.completed(now, sample(100, limit.limit(), false));
            if seen.last() != Some(&limit.limit()) {
                seen.push(limit.limit());
            }
        }
        assert_eq!(seen, [16, 32, 64, 128, 256]);
        limit.completed(now, sample(1, 256, true));
        assert_eq!(limit.limit(), 230);
        while limit.limit() == 230 {
            limit.completed(now, sample(100, limit.limit(), false));
        }
        assert_eq!(limit.limit(), 231);
    }

    #[test]
    fn grows_to_the_maximum_and_no_further() {
        let mut limit = AdaptiveLimit::new(FIRST_LIMIT, 50);
        let now = Instant::now();
        for _ in 0..1000 {
            limit.completed(now, sample(100, limit.limit(), false));
        }
        assert_eq!(limit.limit(), 50);
    }

    #[test]
    fn does_not_grow_when_it_is_not_what_holds_back_calls() {
        let mut limit = AdaptiveLimit::new(FIRST_LIMIT, 1000);
        let now = Instant::now();
        for _ in 0..1000 {
            limit.completed(now, sample(100, 8, false));
        }
        assert_eq!(limit.limit(), 16);
    }

    #[test]
    fn a_burst_of_refusals_leaves_what_was_accepted() {
        let mut limit = AdaptiveLimit::new(FIRST_LIMIT, 1000);
        limit.limit = 248.0;
        let sent = Instant::now();
        let refused = |limit: &mut AdaptiveLimit, after: u64, in_flight| {
            let now = sent + Duration::from_millis(after);
            limit.completed(now, sample(after, in_flight, true));
        };
        for refusals in 0..20 {
            refused(&mut limit, 10 + refusals, 248 - refusals as usize);
        }
        assert_eq!(limit.limit(), 223, "one decrease for a few");
        for refusals in 20..200 {
            refused(&mut limit, 10 + refusals, 248 - refusals as usize);
        }
        assert_eq!(limit.limit(), 48);
    }

    proptest! {
        #[test]
        fn is_always_between_1_and_the_maximum(
            max in 0_usize..200,
            samples in prop::collection::vec((0_u64..5000, 0_usize..300, 0_u8..10), 0..2000),
        ) {
            let mut limit = AdaptiveLimit::new(FIRST_LIMIT, max);
            let mut now = Instant::now();
            for (latency, in_flight, kind) in samples {
                now += Duration::from_millis(latency / 10);
                limit.completed(now, sample(latency, in_flight, kind == 0));
                prop_assert!((1..=max.max(1)).contains(&limit.limit()));
            }
        }
    }
}
