use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::dispatch_budget::DispatchBudget;
use super::registry::Registry;
use crate::agent::{Agents, Prior};
use crate::config::{MemoryPlan, SeedField};
use crate::progress::Progress;
use crate::store::DispatchLogs;

/// What [`RunExec`](super::RunExec) needs that is not in the plan: it travels as an extension of
/// the session's configuration.
#[derive(Debug)]
pub struct RunContext {
    /// Whom to ask.
    pub agents: Agents,
    /// Rollouts pending of each agent; an agent that is missing has unknown many.
    pub pending: BTreeMap<String, u64>,
    /// What earlier processes did for rollouts that are still pending, by task and rollout.
    pub prior: HashMap<(i64, i64), Prior>,
    /// Where the rollout index goes as a seed, if anywhere.
    pub seed: Option<SeedField>,
    /// What may be in memory.
    pub memory: MemoryPlan,
    /// Calls that may be in flight whatever the plan says: the system allows no more connections.
    pub most_calls: usize,
    /// Rows that each partition may queue beyond those in flight.
    pub lookahead: usize,
    /// The longest pause before the second attempt at a rollout; it doubles with each further one.
    pub retry_backoff: Duration,
    /// What that pause doubles up to.
    pub retry_backoff_cap: Duration,
    /// How long an agent that answers nothing is waited for.
    pub agent_patience: Duration,
    /// When to end early because too much fails.
    pub failure_limits: FailureLimits,
    /// The time within which rollouts are sent; none if there is no end to it.
    pub dispatch_budget: Option<DispatchBudget>,
    /// Where dispatches are noted before they are sent.
    pub dispatches: Option<Arc<DispatchLogs>>,
    /// What the partitions share.
    pub registry: Registry,
    /// The sweep's counts.
    pub progress: Arc<Progress>,
    /// How to end early.
    pub shutdown: Shutdown,
}

/// When to end early because too much fails.
#[derive(Debug, Default, Clone, Copy)]
pub struct FailureLimits {
    /// Rollouts that failed.
    pub max_failures: Option<u64>,
    /// Share of the finished rollouts that failed, once [`Self::LEAST`] are finished.
    pub max_error_rate: Option<f64>,
}

impl FailureLimits {
    /// A share of fewer rollouts than this says nothing.
    pub const LEAST: u64 = 20;

    /// What is exceeded, if anything.
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

/// Why a sweep was ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// Somebody interrupted it.
    Signal,
    /// Its deadline passed.
    Deadline,
    /// The time for sending rollouts was over: what is in flight ends, however long it takes.
    DispatchBudget,
    /// Too many rollouts failed.
    MaxFailures,
    /// Too large a share of the rollouts failed.
    MaxErrorRate,
    /// Something of ours failed, such as the disk; the error says what.
    Failure,
}

/// The two ways to end a sweep early.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    stop: CancellationToken,
    cut_off: CancellationToken,
    abort: CancellationToken,
    reason: Arc<Mutex<Option<StopReason>>>,
}

impl Shutdown {
    /// Nothing more is sent; what is in flight is waited for. The first reason counts, but that a budget is spent is
    /// none for hurry: any other takes its place.
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

    /// What is in flight is dropped as well, and pending again.
    pub fn abort(&self) {
        self.stop(StopReason::Signal);
        self.abort.cancel();
    }

    /// Why [`Self::stop`] was called, if it was.
    pub fn reason(&self) -> Option<StopReason> {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// [`Self::stop`] was called.
    pub fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Waits for [`Self::stop`].
    pub async fn stopping(&self) {
        self.stop.cancelled().await;
    }

    /// Waits until what is in flight has only the grace time left.
    pub async fn cutting_off(&self) {
        self.cut_off.cancelled().await;
    }

    /// Waits for [`Self::abort`].
    pub async fn aborting(&self) {
        self.abort.cancelled().await;
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
}
