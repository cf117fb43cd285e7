use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::call::Dispatch;
use super::latencies::Latencies;

/// A call is late when it took this many times as long as 99 of 100 others of its agent ...
const FACTOR: u32 = 10;

/// ... and this long, and so many others are known.
const LEAST: Duration = Duration::from_secs(60);
const LEAST_CALLS: u64 = 100;

/// Notices calls that take far longer than others: where there is no deadline, somebody should know.
#[derive(Debug, Default)]
pub(super) struct Lateness {
    agents: HashMap<Arc<str>, Latencies>,
}

impl Lateness {
    /// A call was answered after `latency`.
    pub(super) fn ended(&mut self, dispatch: &Dispatch, latency: Duration) {
        let agent = &dispatch.row.agent_name;
        match self.agents.get_mut(agent) {
            Some(latencies) => latencies.add(latency),
            None => {
                let mut latencies = Latencies::new();
                latencies.add(latency);
                self.agents.insert(Arc::clone(agent), latencies);
            }
        }
    }

    /// What is to be said of the calls in flight: one text for each agent that has late ones that
    /// nothing was said of.
    pub(super) fn look<'a>(
        &mut self,
        calls: impl Iterator<Item = &'a mut Dispatch>,
    ) -> Vec<String> {
        let now = Instant::now();
        let limits: HashMap<&str, (Duration, Duration)> = self
            .agents
            .iter()
            .filter(|(_, latencies)| latencies.count() >= LEAST_CALLS)
            .map(|(agent, latencies)| {
                let p99 = latencies.quantile(0.99);
                (&**agent, (p99, (p99 * FACTOR).max(LEAST)))
            })
            .collect();
        let mut late: HashMap<Arc<str>, (usize, i64, i64)> = HashMap::new();
        for call in calls {
            let limit = limits.get(&*call.row.agent_name);
            let elapsed = now.saturating_duration_since(call.began);
            if !call.is_late && limit.is_some_and(|(_, limit)| elapsed > *limit) {
                call.is_late = true;
                let first = (0, call.row.task_index, call.row.rollout_index);
                late.entry(Arc::clone(&call.row.agent_name))
                    .or_insert(first)
                    .0 += 1;
            }
        }
        late.into_iter()
            .map(|(agent, (count, task, rollout))| {
                let (p99, limit) = limits.get(&*agent).copied().unwrap_or_default();
                format!(
                    "agent '{agent}': {count} more call(s) in flight for over {:.0} s, such as task {task}, rollout \
                     {rollout}; 99 of 100 were answered within {:.1} s. A shorter --rollout-timeout would end them",
                    limit.as_secs_f64(),
                    p99.as_secs_f64(),
                )
            })
            .collect()
    }
}
