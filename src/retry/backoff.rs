//! [`Backoff`]: how long a retry waits.

use std::time::Duration;

/// Exponential backoff: the longest wait doubles with every failure, up to a cap.
///
/// The caller of [`Self::jittered`] supplies the randomness, so that a test can fix it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The longest wait after the first failure.
    pub base: Duration,
    /// The longest wait after any failure.
    pub cap: Duration,
}

impl Backoff {
    /// Returns the longest wait after `failures` failures in all. Zero failures count as one.
    pub fn longest(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        self.base.saturating_mul(1 << doublings).min(self.cap)
    }

    /// Returns a wait with full jitter, for `unit` in 0..1: calls that failed together are not retried together.
    pub fn jittered(&self, failures: u32, unit: f64) -> Duration {
        self.longest(failures).mul_f64(unit.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BACKOFF: Backoff = Backoff {
        base: Duration::from_millis(500),
        cap: Duration::from_secs(60),
    };

    #[test]
    fn the_bound_doubles_up_to_the_cap() {
        let bounds: Vec<u128> = [0, 1, 2, 3, 7, 8, 9, u32::MAX]
            .map(|failures| BACKOFF.longest(failures).as_millis())
            .to_vec();
        assert_eq!(
            bounds,
            [500, 500, 1000, 2000, 32_000, 60_000, 60_000, 60_000]
        );
    }

    #[test]
    fn a_cap_below_the_base_and_a_wild_base_hold() {
        let backoff = Backoff {
            base: Duration::MAX,
            cap: Duration::from_secs(1),
        };
        assert_eq!(backoff.jittered(5, 1.0), Duration::from_secs(1));
    }

    proptest! {
        #[test]
        fn a_wait_is_the_jittered_bound(failures in 0_u32..100, unit in 0.0..1.0_f64) {
            let wait = BACKOFF.jittered(failures, unit).as_secs_f64();
            let bound = BACKOFF.longest(failures).as_secs_f64();
            prop_assert!((wait - unit * bound).abs() < 1e-6);
        }
    }
}
