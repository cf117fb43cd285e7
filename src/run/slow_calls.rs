//! [`SlowCalls`]: notices about calls in flight that take far longer than others. Without a deadline, nobody else says so.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::row::Dispatch;
use crate::call::RolloutKey;

/// A call is slow if it takes this many times as long as 99 of 100 other calls of its agent.
const FACTOR: u32 = 10;

/// A call is slow only if it takes at least this long, and this many other calls are known.
const LEAST: Duration = Duration::from_secs(60);
const LEAST_CALLS: u64 = 100;

/// The latencies of each agent's calls.
#[derive(Debug, Default)]
pub(super) struct SlowCalls {
    agents: HashMap<Arc<str>, Latencies>,
}

impl SlowCalls {
    /// Notes a call that was answered after `latency`.
    pub(super) fn ended(&mut self, agent: &Arc<str>, latency: Duration) {
        if let Some(latencies) = self.agents.get_mut(agent) {
            latencies.add(latency);
        } else {
            let mut latencies = Latencies::new();
            latencies.add(latency);
            self.agents.insert(Arc::clone(agent), latencies);
        }
    }

    /// Returns one notice for each agent that has slow calls without a notice.
    pub(super) fn notices<'a>(
        &mut self,
        calls: impl Iterator<Item = &'a mut Dispatch>,
    ) -> Vec<String> {
        let now = Instant::now();
        let usual: HashMap<&str, Duration> = self
            .agents
            .iter()
            .filter(|(_, latencies)| latencies.count >= LEAST_CALLS)
            .map(|(agent, latencies)| (&**agent, latencies.quantile(0.99)))
            .collect();
        let limit = |p99: Duration| (p99 * FACTOR).max(LEAST);
        let mut slow: HashMap<Arc<str>, (usize, RolloutKey)> = HashMap::new();
        for call in calls {
            let agent = &call.row.agent_name;
            let elapsed = now.saturating_duration_since(call.began);
            if !call.is_slow && usual.get(&**agent).is_some_and(|p99| elapsed > limit(*p99)) {
                call.is_slow = true;
                slow.entry(Arc::clone(agent)).or_insert((0, call.row.key)).0 += 1;
            }
        }
        slow.into_iter()
            .map(|(agent, (count, first))| {
                let p99 = usual.get(&*agent).copied().unwrap_or_default();
                format!(
                    "agent '{agent}': {count} more call(s) in flight for over {:.0} s, such as task {}, rollout {}; 99 of \
                     100 were answered within {:.1} s. A shorter --rollout-timeout would end them",
                    limit(p99).as_secs_f64(),
                    first.task_index,
                    first.rollout_index,
                    p99.as_secs_f64(),
                )
            })
            .collect()
    }
}

/// Bounds of a bucket are this factor apart: a quantile is known within 10 %.
const GROWTH: f64 = 1.1;

/// The bound of the first bucket, in seconds.
const SMALLEST: f64 = 1e-4;

/// The number of buckets: the last one ends at about 26 days.
const BUCKETS: usize = 250;

/// A histogram of latencies, with buckets that grow by a factor.
#[derive(Debug)]
struct Latencies {
    buckets: Vec<u64>,
    count: u64,
}

impl Latencies {
    fn new() -> Self {
        Self {
            buckets: vec![0; BUCKETS],
            count: 0,
        }
    }

    fn add(&mut self, latency: Duration) {
        let bucket = (latency.as_secs_f64() / SMALLEST).max(1.0).log(GROWTH) as usize;
        if let Some(bucket) = self.buckets.get_mut(bucket.min(BUCKETS - 1)) {
            *bucket += 1;
            self.count += 1;
        }
    }

    /// Returns approximately the latency that this share of the calls did not exceed; zero if there are none.
    fn quantile(&self, share: f64) -> Duration {
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
        assert_eq!(latencies.count, 1001);
    }
}
