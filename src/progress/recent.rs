//! [`Recent`]: what landed in the last minute, for rates and latencies.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Length of the window of the rates.
pub const SPAN: Duration = Duration::from_secs(60);

/// What lands within this time is counted together.
const SLOT: Duration = Duration::from_millis(250);

/// Most latencies that are kept of a slot.
const MAX_LATENCIES: usize = 64;

/// The rates of a sweep over the last minute of its work, or since its first call if that is less. The status of a run
/// computes the same from its files.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Rates {
    /// Rollouts per second that were answered or failed for good; 0 before the first.
    pub rollouts: f64,
    /// Output tokens per second; none if no answer tells.
    pub output_tokens: Option<f64>,
    /// The median and the 95th percentile of the time from a request to the last byte of its answer, in seconds.
    pub latency: Option<(f64, f64)>,
}

/// What landed in one moment.
#[derive(Debug, Clone)]
pub(super) struct Landed {
    pub at: Instant,
    /// Rollouts that were answered or failed for good.
    pub finished: u64,
    pub output_tokens: Option<u64>,
    /// Seconds from a request to its answer.
    pub latencies: Vec<f64>,
}

/// What landed in the last minute.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// When the first call was sent.
    began: Option<Instant>,
    slots: VecDeque<Landed>,
}

impl Recent {
    pub(super) fn begin(&mut self, now: Instant) {
        self.began.get_or_insert(now);
    }

    pub(super) fn add(&mut self, mut landed: Landed) {
        while self
            .slots
            .front()
            .is_some_and(|slot| slot.at + SPAN < landed.at)
        {
            self.slots.pop_front();
        }
        landed.latencies.truncate(MAX_LATENCIES);
        // A slot has the time of its end, so that the newest one is when the work ended.
        match self.slots.back_mut() {
            Some(slot) if slot_of(slot.at, self.began) == slot_of(landed.at, self.began) => {
                slot.at = landed.at;
                slot.finished += landed.finished;
                slot.output_tokens = add(slot.output_tokens, landed.output_tokens);
                let room = MAX_LATENCIES - slot.latencies.len();
                slot.latencies
                    .extend(landed.latencies.into_iter().take(room));
            }
            _ => self.slots.push_back(landed),
        }
    }

    /// Time from the first call to the last that landed.
    pub(super) fn worked(&self) -> Duration {
        match (self.began, self.slots.back()) {
            (Some(began), Some(last)) => last.at.saturating_duration_since(began),
            _ => Duration::ZERO,
        }
    }

    /// The rates of the last minute before `now`; without it, of the last minute of the work.
    pub(super) fn rates(&self, now: Option<Instant>) -> Rates {
        let end = now.or(self.slots.back().map(|slot| slot.at));
        let (Some(began), Some(end)) = (self.began, end) else {
            return Rates::default();
        };
        let span = end.saturating_duration_since(began).min(SPAN);
        let slots = || self.slots.iter().filter(|slot| slot.at + SPAN >= end);
        // A sweep of no length has no rate.
        let per_second = |count: u64| match count as f64 / span.as_secs_f64() {
            rate if rate.is_finite() => rate,
            _ => 0.0,
        };
        let tokens = slots().map(|slot| slot.output_tokens).fold(None, add);
        let mut latencies: Vec<f64> = slots().flat_map(|slot| &slot.latencies).copied().collect();
        latencies.sort_unstable_by(f64::total_cmp);
        let percentile = |percent: usize| {
            let last = latencies.len().checked_sub(1)?;
            latencies.get((last * percent).div_ceil(100)).copied()
        };
        Rates {
            rollouts: per_second(slots().map(|slot| slot.finished).sum()),
            output_tokens: tokens.map(per_second),
            latency: percentile(50).zip(percentile(95)),
        }
    }
}

fn slot_of(at: Instant, began: Option<Instant>) -> u128 {
    let since = began.map_or(Duration::ZERO, |began| at.saturating_duration_since(began));
    since.as_nanos() / SLOT.as_nanos()
}

fn add(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn landed(at: Instant, seconds: f64) -> Landed {
        Landed {
            at,
            finished: 2,
            output_tokens: Some(10),
            latencies: vec![seconds, seconds / 2.0],
        }
    }

    #[test]
    fn rates_are_those_of_the_last_minute_or_since_the_first_call() {
        let began = Instant::now();
        let at = |seconds: f64| began + Duration::from_secs_f64(seconds);
        let mut recent = Recent::default();
        assert_eq!(recent.rates(Some(began)), Rates::default());
        recent.begin(began);
        recent.begin(at(9.0));
        for tenth in 1..=1000_u32 {
            recent.add(landed(at(f64::from(tenth) / 10.0), f64::from(tenth) / 10.0));
            if tenth == 50 {
                let rates = recent.rates(Some(at(10.0)));
                assert_eq!((rates.rollouts, rates.output_tokens), (10.0, Some(50.0)));
                assert_eq!(recent.rates(None).rollouts, 20.0);
            }
        }
        assert_eq!(recent.worked(), Duration::from_secs(100));
        let rates = recent.rates(None);
        assert!((19.0..=21.0).contains(&rates.rollouts), "{rates:?}");
        let (median, high) = rates.latency.unwrap();
        assert!((40.0..60.0).contains(&median) && (90.0..100.0).contains(&high));
        // Nothing has landed for half a minute, and then for two.
        let rates = recent.rates(Some(at(130.0)));
        assert!((9.0..=11.0).contains(&rates.rollouts), "{rates:?}");
        assert_eq!(recent.rates(Some(at(220.0))).rollouts, 0.0);
    }
}
