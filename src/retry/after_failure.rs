//! [`Budgets`] and [`AfterFailure`]: how many failures a rollout may have, and what follows from each.

use super::{Failure, FailureClass};

/// What a failed attempt counts against. A rollout has failed when one of its budgets is spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Budget {
    /// Failures of networks and servers.
    Infra,
    /// Refusals by a rate limit: the agent is healthy, and asks for a later call.
    RateLimit,
    /// Failures that the request itself seems to cause.
    Data,
    /// Failures that the agent reported, bounded by `max_attempts`.
    Attempts,
}

impl Budget {
    /// The budget that a failure counts against, if any.
    pub fn of(class: FailureClass, http_status: Option<u16>) -> Option<Self> {
        match (class, http_status) {
            (FailureClass::Infra, Some(429)) => Some(Self::RateLimit),
            (FailureClass::Infra | FailureClass::Timeout, _) => Some(Self::Infra),
            (FailureClass::Data, _) => Some(Self::Data),
            (FailureClass::AgentFlagged, _) => Some(Self::Attempts),
            (FailureClass::NotPersisted | FailureClass::Interrupted, _) => None,
        }
    }

    /// Returns its name, as SQL and [`Budgets`] spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Infra => "infra",
            Self::RateLimit => "rate_limit",
            Self::Data => "data",
            Self::Attempts => "attempts",
        }
    }
}

/// The number of failed attempts, by [`Budget`], at which a rollout has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budgets {
    /// Failures of networks and servers.
    pub infra: u32,
    /// Refusals by a rate limit.
    pub rate_limit: u32,
    /// Failures that the request itself seems to cause.
    pub data: u32,
    /// Failures that the agent reported, bounded by `max_attempts`.
    pub attempts: u32,
    /// Failures of any kind, also those without a connection. A sweep sets no bound: `u32::MAX`.
    pub all: u32,
}

/// Counts the failed attempts at a rollout so far, by [`Budget`].
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct FailureCounts {
    /// Failures of networks and servers.
    pub infra: u32,
    /// Refusals by a rate limit.
    pub rate_limit: u32,
    /// Failures that the request itself seems to cause.
    pub data: u32,
    /// Failures that the agent reported.
    pub attempts: u32,
    /// Attempts of this process that got no connection. They count against no budget: the rollout cannot be the cause,
    /// and `--agent-patience` bounds them.
    pub unreachable: u32,
}

/// The earlier attempts at a rollout that is still pending, by processes before this one.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Prior {
    /// Number of the next attempt.
    pub attempt: u32,
    /// Failed attempts of the rollout.
    pub failures: FailureCounts,
    /// Seconds that the longest attempt at the rollout took, if known.
    pub seconds: Option<f64>,
    /// Whether an attempt left a deliverable (its output files) that the next attempt only has to be judged on.
    pub reuses_deliverable: bool,
}

/// What follows from a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterFailure {
    /// Retry, after the backoff for `failures` failures.
    Retry {
        /// Failures so far that count against the same budget, or that got no connection.
        failures: u32,
    },
    /// The rollout has failed.
    Fail,
    /// Nothing in this process: the rollout stays pending.
    LeavePending,
}

impl FailureCounts {
    /// Whether every attempt so far got no connection, or there was none.
    pub fn is_untried(&self) -> bool {
        let unreachable = self.unreachable;
        let none = Self::default();
        *self
            == Self {
                unreachable,
                ..none
            }
    }

    /// Counts a failed attempt and decides what follows. Without `budgets` nothing is retried.
    pub fn record(
        &mut self,
        failure: &Failure,
        http_status: Option<u16>,
        budgets: Option<&Budgets>,
    ) -> AfterFailure {
        if failure.failure_terminal {
            return AfterFailure::Fail;
        }
        let Some(budget) = Budget::of(failure.class, http_status) else {
            return AfterFailure::LeavePending;
        };
        let count = match budget {
            _ if failure.unreachable => &mut self.unreachable,
            Budget::Infra => &mut self.infra,
            Budget::RateLimit => &mut self.rate_limit,
            Budget::Data => &mut self.data,
            Budget::Attempts => &mut self.attempts,
        };
        *count = count.saturating_add(1);
        let failures = *count;
        if budgets.is_none_or(|budgets| self.exhaust(budgets)) {
            AfterFailure::Fail
        } else {
            AfterFailure::Retry { failures }
        }
    }

    /// Whether a budget is spent. `queries/expand/failed_rollouts.sql` has this rule for all processes.
    fn exhaust(&self, budgets: &Budgets) -> bool {
        self.infra >= budgets.infra
            || self.rate_limit >= budgets.rate_limit
            || self.data >= budgets.data
            || self.attempts >= budgets.attempts
            || self.all() >= budgets.all
    }

    fn all(&self) -> u32 {
        let each = [self.rate_limit, self.data, self.attempts, self.unreachable];
        each.into_iter().fold(self.infra, u32::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGETS: Budgets = Budgets {
        infra: 2,
        rate_limit: 9,
        data: 1,
        attempts: 3,
        all: u32::MAX,
    };

    #[test]
    fn a_rollout_has_failed_when_one_budget_is_spent_and_not_before() {
        let mut counts = FailureCounts::default();
        let mut record = |class, status| {
            let failure = Failure::new(class, "");
            counts.record(&failure, status, Some(&BUDGETS))
        };
        let retry = AfterFailure::Retry { failures: 1 };
        assert_eq!(record(FailureClass::Infra, None), retry);
        assert_eq!(record(FailureClass::Infra, Some(429)), retry);
        assert_eq!(record(FailureClass::AgentFlagged, Some(200)), retry);
        assert_eq!(
            record(FailureClass::Interrupted, None),
            AfterFailure::LeavePending
        );
        assert_eq!(record(FailureClass::Timeout, None), AfterFailure::Fail);
    }

    #[test]
    fn attempts_without_a_connection_count_against_no_budget() {
        let mut counts = FailureCounts::default();
        let failure = Failure {
            unreachable: true,
            ..Failure::new(FailureClass::Infra, "")
        };
        for failures in 1..10 {
            let next = counts.record(&failure, None, Some(&BUDGETS));
            assert_eq!(next, AfterFailure::Retry { failures });
        }
    }

    #[test]
    fn what_the_agent_calls_terminal_is_not_retried() {
        let failure = Failure {
            failure_terminal: true,
            ..Failure::new(FailureClass::Interrupted, "")
        };
        let next = FailureCounts::default().record(&failure, None, Some(&BUDGETS));
        assert_eq!(next, AfterFailure::Fail);
    }
}
