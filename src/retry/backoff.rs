use std::time::Duration;

/// Exponential backoff: the longest wait doubles with every failure, up to a cap.
///
/// Randomness is the caller's: `unit` is uniform in 0..1, so that a test can fix it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The longest wait after the first failure.
    pub base: Duration,
    /// The longest wait after any failure.
    pub cap: Duration,
}

impl Backoff {
    /// The longest wait after this many failures, the last one included. Zero failures count as one.
    pub fn longest(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        self.base.saturating_mul(1 << doublings).min(self.cap)
    }

    /// A wait with full jitter: calls that failed together do not come back together.
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
