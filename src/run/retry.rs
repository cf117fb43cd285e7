use std::time::Instant;

use super::backoff::{Backoff, Jitter};
use super::call::PendingRow;
use super::context::RunContext;
use crate::config::Budgets;
use crate::failure::{Budget, Failure};

/// Decides what follows from a failed attempt.
#[derive(Debug)]
pub(super) struct Retries {
    backoff: Backoff,
    jitter: Jitter,
}

/// What follows from a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Another attempt, not before this.
    Retry(Instant),
    /// The rollout failed.
    Fail,
    /// Nothing in this process: the rollout stays pending.
    LeavePending,
}

impl Retries {
    pub(super) fn new(context: &RunContext, seed: u64) -> Self {
        Self {
            backoff: Backoff {
                base: context.retry_backoff,
                cap: context.retry_backoff_cap,
            },
            jitter: Jitter::new(seed),
        }
    }

    /// Counts a failed attempt at `row`, and says what follows.
    pub(super) fn after(
        &mut self,
        row: &mut PendingRow,
        failure: &Failure,
        http_status: Option<u16>,
        budgets: Option<&Budgets>,
        now: Instant,
    ) -> Next {
        if failure.failure_terminal {
            return Next::Fail;
        }
        let Some(budget) = Budget::of(failure.class, http_status) else {
            return Next::LeavePending;
        };
        let failures = match failure.unreachable {
            true => row.failures.miss(),
            false => row.failures.count(budget),
        };
        if budgets.is_none_or(|budgets| row.failures.spent(budgets)) {
            return Next::Fail;
        }
        let pause = self.backoff.delay(failures, self.jitter.unit());
        Next::Retry(now + pause.max(failure.retry_after.unwrap_or_default()))
    }
}
