use std::time::Duration;

/// Bounds of a bucket are this factor apart: a quantile is known within 10 %.
const GROWTH: f64 = 1.1;

/// Of the first bucket, in seconds.
const SMALLEST: f64 = 1e-4;

/// Up to about three weeks.
const BUCKETS: usize = 250;

/// How long calls took, in buckets that grow by a factor: enough to tell which one is an outlier.
#[derive(Debug)]
pub(super) struct Latencies {
    buckets: Vec<u64>,
    count: u64,
}

impl Latencies {
    pub(super) fn new() -> Self {
        Self {
            buckets: vec![0; BUCKETS],
            count: 0,
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn add(&mut self, latency: Duration) {
        let bucket = (latency.as_secs_f64() / SMALLEST).max(1.0).log(GROWTH) as usize;
        if let Some(bucket) = self.buckets.get_mut(bucket.min(BUCKETS - 1)) {
            *bucket += 1;
            self.count += 1;
        }
    }

    /// The latency that this share of the calls did not exceed, about; zero where there are none.
    pub(super) fn quantile(&self, share: f64) -> Duration {
        let wanted = (self.count as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                let bound = SMALLEST * GROWTH.powi(bucket as i32 + 1);
                return Duration::from_secs_f64(bound);
            }
        }
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_near_what_was_added() {
        let mut latencies = Latencies::new();
        assert_eq!(latencies.quantile(0.99), Duration::ZERO);
        for milliseconds in 1..=1000 {
            latencies.add(Duration::from_millis(milliseconds));
        }
        for (share, expected) in [(0.5, 0.5), (0.99, 0.99)] {
            let found = latencies.quantile(share).as_secs_f64();
            assert!(found >= expected && found < expected * 1.11, "{found}");
        }
        latencies.add(Duration::from_secs(100 * 86_400));
        assert_eq!(latencies.count(), 1001);
    }
}
