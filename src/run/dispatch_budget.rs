use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Fewer calls than this say nothing of how long the next one takes.
const FEWEST: usize = 5;

/// The time within which rollouts are sent. What would not end within it is better not begun.
#[derive(Debug)]
pub struct DispatchBudget {
    ends: Option<Instant>,
    margin: Option<Duration>,
    durations: Mutex<Durations>,
}

/// How long calls took: the shorter three quarters, and the longer quarter.
#[derive(Debug, Default)]
struct Durations {
    short: BinaryHeap<Duration>,
    long: BinaryHeap<Reverse<Duration>>,
}

impl DispatchBudget {
    /// From `now` on. `margin` is what must be left of it for a call to be sent.
    pub fn new(now: Instant, budget: Duration, margin: Option<Duration>) -> Self {
        Self {
            ends: now.checked_add(budget),
            margin,
            durations: Mutex::default(),
        }
    }

    /// Notes how long a call took that was answered.
    pub(super) fn answered(&self, duration: Duration) {
        let mut durations = self
            .durations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        durations.add(duration);
    }

    /// Nothing more is to be sent.
    pub(super) fn is_spent(&self, now: Instant) -> bool {
        let Some(ends) = self.ends else { return false };
        let left = ends.saturating_duration_since(now);
        let margin = || {
            let durations = self
                .durations
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            self.margin.or_else(|| durations.third_quartile())
        };
        left.is_zero() || margin().is_some_and(|margin| left < margin)
    }
}

impl Durations {
    fn add(&mut self, duration: Duration) {
        match self.short.peek() {
            Some(longest) if duration > *longest => self.long.push(Reverse(duration)),
            _ => self.short.push(duration),
        }
        // The quartile lies at or behind the last of the short ones.
        let count = self.short.len() + self.long.len();
        let short = (count - 1) * 3 / 4 + 1;
        if self.short.len() > short {
            self.long.extend(self.short.pop().map(Reverse));
        } else if self.short.len() < short {
            self.short
                .extend(self.long.pop().map(|Reverse(longer)| longer));
        }
    }

    fn third_quartile(&self) -> Option<Duration> {
        let count = self.short.len() + self.long.len();
        let below = *self.short.peek()?;
        if count < FEWEST {
            return None;
        }
        let quarters = ((count - 1) * 3 % 4) as f64;
        let above = self.long.peek().map_or(below, |Reverse(above)| *above);
        Some(below + (above - below).mul_f64(quarters / 4.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn the_quartile_is_that_of_the_sorted_durations() {
        let mut durations = Durations::default();
        let mut sorted: Vec<f64> = Vec::new();
        // Neither ascending nor descending, and with equal ones.
        for number in 0..40_u32 {
            let duration = f64::from(number * 17 % 23);
            durations.add(seconds(duration));
            sorted.push(duration);
            sorted.sort_by(f64::total_cmp);
            let place = (sorted.len() - 1) as f64 * 0.75;
            let (below, part) = (place as usize, place.fract());
            let above = sorted[(below + 1).min(sorted.len() - 1)];
            let expected = sorted[below] * (1.0 - part) + above * part;
            let found = durations.third_quartile().map(|found| found.as_secs_f64());
            match sorted.len() < FEWEST {
                true => assert_eq!(found, None),
                false => assert!((found.unwrap() - expected).abs() < 1e-6, "{sorted:?}"),
            }
        }
    }

    #[test]
    fn what_would_not_end_in_time_is_not_sent() {
        let now = Instant::now();
        let at = |offset: f64| now + seconds(offset);
        let given = DispatchBudget::new(now, seconds(100.0), Some(seconds(30.0)));
        assert!(!given.is_spent(at(70.0)) && given.is_spent(at(71.0)));

        let adaptive = DispatchBudget::new(now, seconds(100.0), None);
        for _ in 0..4 {
            adaptive.answered(seconds(40.0));
        }
        assert!(!adaptive.is_spent(at(99.0)) && adaptive.is_spent(at(100.0)));
        adaptive.answered(seconds(40.0));
        assert!(!adaptive.is_spent(at(60.0)) && adaptive.is_spent(at(61.0)));

        assert!(DispatchBudget::new(now, Duration::ZERO, None).is_spent(now));
    }
}
