//! Why and how a run stops before all rollouts are done: [`Shutdown`], [`FailureLimits`] and [`DispatchBudget`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::config::Settings;

/// The limits of failures beyond which a sweep stops early.
#[derive(Debug, Default, Clone, Copy)]
pub struct FailureLimits {
    /// The most failed rollouts.
    pub max_failures: Option<u64>,
    /// The largest share of failed rollouts, once [`Self::LEAST`] are finished.
    pub max_error_rate: Option<f64>,
}

impl FailureLimits {
    /// The error rate of fewer finished rollouts than this is ignored.
    pub const LEAST: u64 = 20;

    /// Returns the limit that is exceeded, if any.
    pub fn exceeded(&self, done: u64, failed: u64) -> Option<StopReason> {
        let finished = done + failed;
        let rate = failed as f64 / finished.max(1) as f64;
        if self.max_failures.is_some_and(|max| failed >= max) {
            return Some(StopReason::MaxFailures);
        }
        let is_over = self.max_error_rate.is_some_and(|max| rate > max);
        (is_over && finished >= Self::LEAST).then_some(StopReason::MaxErrorRate)
    }
}

/// The reason why a sweep stopped early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// A signal.
    Signal,
    /// The sweep's deadline passed.
    Deadline,
    /// The time for sending rollouts is over. Calls in flight may end, however long they take.
    DispatchBudget,
    /// Too many rollouts failed.
    MaxFailures,
    /// Too large a share of the rollouts failed.
    MaxErrorRate,
    /// Rollstream itself failed, for example because the disk is full. The error says why.
    Failure,
}

/// Stops a sweep early: [`stop`](Self::stop) lets calls in flight end, [`abort`](Self::abort) drops them.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    stop: CancellationToken,
    cut_off: CancellationToken,
    abort: CancellationToken,
    reason: Arc<Mutex<Option<StopReason>>>,
}

impl Shutdown {
    /// Stops sending, and lets calls in flight end. The first reason counts, except that any other replaces
    /// [`StopReason::DispatchBudget`], which sets no grace time.
    pub fn stop(&self, reason: StopReason) {
        let mut known = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_none_or(|known| known == StopReason::DispatchBudget) {
            *known = Some(reason);
        }
        drop(known);
        self.stop.cancel();
        if reason != StopReason::DispatchBudget {
            self.cut_off.cancel();
        }
    }

    /// Drops the calls in flight, too: their rollouts are pending again.
    pub fn abort(&self) {
        self.stop(StopReason::Signal);
        self.abort.cancel();
    }

    /// Returns the reason with which [`Self::stop`] was called, if it was.
    pub fn reason(&self) -> Option<StopReason> {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether [`Self::stop`] was called.
    pub fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Waits for [`Self::stop`].
    pub async fn stopping(&self) {
        self.stop.cancelled().await;
    }

    /// Waits until calls in flight have only the grace time left.
    pub async fn cutting_off(&self) {
        self.cut_off.cancelled().await;
    }

    /// Waits for [`Self::abort`].
    pub async fn aborting(&self) {
        self.abort.cancelled().await;
    }
}

/// Fewer calls than this do not predict how long the next one takes.
const FEWEST: usize = 5;

/// The time within which rollouts are sent. A call that would not end within it is not sent.
#[derive(Debug)]
pub struct DispatchBudget {
    ends: Option<Instant>,
    margin: Option<Duration>,
    durations: Mutex<Durations>,
}

/// The durations of calls: the shorter three quarters and the longer quarter.
#[derive(Debug, Default)]
struct Durations {
    short: BinaryHeap<Duration>,
    long: BinaryHeap<Reverse<Duration>>,
}

impl DispatchBudget {
    /// Returns the budget of a sweep that began this long ago, if it has one.
    pub(crate) fn of(settings: &Settings, elapsed: Duration) -> Option<Arc<Self>> {
        let span = |seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let left = span(settings.dispatch_budget_s?).saturating_sub(elapsed);
        let margin = settings.drain_margin_s.map(span);
        Some(Arc::new(Self::new(Instant::now(), left, margin)))
    }

    /// Creates a budget from `now` on. A call is sent if at least `margin` is left; default: third quartile of calls'
    /// durations.
    pub fn new(now: Instant, budget: Duration, margin: Option<Duration>) -> Self {
        Self {
            ends: now.checked_add(budget),
            margin,
            durations: Mutex::default(),
        }
    }

    /// Notes the duration of a call that was answered.
    pub(super) fn answered(&self, duration: Duration) {
        self.durations().add(duration);
    }

    /// Returns whether nothing more may be sent.
    pub(super) fn is_spent(&self, now: Instant) -> bool {
        let Some(ends) = self.ends else { return false };
        let left = ends.saturating_duration_since(now);
        let margin = || self.margin.or_else(|| self.durations().third_quartile());
        left.is_zero() || margin().is_some_and(|margin| left < margin)
    }

    fn durations(&self) -> MutexGuard<'_, Durations> {
        self.durations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Durations {
    fn add(&mut self, duration: Duration) {
        match self.short.peek() {
            Some(longest) if duration > *longest => self.long.push(Reverse(duration)),
            _ => self.short.push(duration),
        }
        // The quartile is the last of the short durations or lies after it.
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

    #[test]
    fn too_many_failures_and_too_large_a_share_end_a_sweep() {
        let limits = FailureLimits {
            max_failures: Some(50),
            max_error_rate: Some(0.25),
        };
        for (done, failed, expected) in [
            (0, 19, None),
            (15, 5, None),
            (14, 6, Some(StopReason::MaxErrorRate)),
            (1000, 49, None),
            (1000, 50, Some(StopReason::MaxFailures)),
        ] {
            assert_eq!(limits.exceeded(done, failed), expected, "{done} {failed}");
        }
        assert_eq!(FailureLimits::default().exceeded(0, 1000), None);
    }

    #[test]
    fn the_first_reason_counts() {
        let shutdown = Shutdown::default();
        assert_eq!(shutdown.reason(), None);
        shutdown.stop(StopReason::Deadline);
        shutdown.abort();
        assert_eq!(shutdown.reason(), Some(StopReason::Deadline));
    }

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn the_quartile_is_that_of_the_sorted_durations() {
        let mut durations = Durations::default();
        let mut sorted: Vec<f64> = Vec::new();
        // Durations that neither ascend nor descend, with equal ones among them.
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
            if sorted.len() < FEWEST {
                assert_eq!(found, None)
            } else {
                assert!((found.unwrap() - expected).abs() < 1e-6, "{sorted:?}")
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
