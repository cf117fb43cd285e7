//! How long a rollout waits before it is tried again: [`Backoff`], exponential with full jitter, and
//! [`Jitter`], the randomness for it.

use std::time::Duration;

/// Exponential backoff with full jitter: any wait up to a bound that doubles with every failure.
/// Calls that failed together so do not come back together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Backoff {
    /// The longest wait after the first failure.
    pub(super) base: Duration,
    /// The longest wait after any.
    pub(super) cap: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            base: Duration::from_millis(500),
            cap: Duration::from_secs(60),
        }
    }
}

impl Backoff {
    /// The wait after so many failures, the last included (none counts as one). `unit_random` is
    /// uniform in 0..1.
    pub(super) fn delay(&self, failures: u32, unit_random: f64) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let bound = self.base.saturating_mul(1 << doublings).min(self.cap);
        bound.mul_f64(unit_random.clamp(0.0, 1.0))
    }
}

/// A stream of numbers that a seed fixes: SplitMix64 (Steele, Lea, Flood: "Fast Splittable
/// Pseudorandom Number Generators", 2014).
#[derive(Debug, Clone)]
pub(super) struct Jitter(u64);

impl Jitter {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Uniform in 0..1, without 1.
    pub(super) fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        (z >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_bound_doubles_up_to_the_cap() {
        let backoff = Backoff::default();
        let bounds: Vec<u128> = [0, 1, 2, 3, 7, 8, 9, u32::MAX]
            .map(|failures| backoff.delay(failures, 1.0).as_millis())
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
        assert_eq!(backoff.delay(5, 1.0), Duration::from_secs(1));
    }

    #[test]
    fn jitter_depends_on_the_seed_alone_and_fills_the_unit_interval() {
        let draw = |seed| {
            let mut jitter = Jitter::new(seed);
            (0..10_000).map(|_| jitter.unit()).collect::<Vec<f64>>()
        };
        let draws = draw(7);
        assert_eq!(draws, draw(7));
        assert_ne!(draws, draw(8));
        assert!(draws.iter().all(|draw| (0.0..1.0).contains(draw)));
        for tenth in 0..10 {
            let low = f64::from(tenth) / 10.0;
            let share = draws
                .iter()
                .filter(|draw| (low..low + 0.1).contains(*draw))
                .count();
            assert!((900..1100).contains(&share), "{tenth}: {share}");
        }
    }

    proptest! {
        #[test]
        fn a_delay_is_the_jittered_bound(failures in 0_u32..100, unit in 0.0..1.0_f64) {
            let backoff = Backoff::default();
            let delay = backoff.delay(failures, unit).as_secs_f64();
            let bound = backoff.delay(failures, 1.0).as_secs_f64();
            prop_assert!((delay - unit * bound).abs() < 1e-6);
        }
    }
}
