use crate::config::Budgets;
use crate::failure::Budget;

/// Failed attempts at a rollout so far, by what they count against.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Failures {
    /// Failures of networks and servers.
    pub infra: u32,
    /// Refusals by a rate limit.
    pub rate_limit: u32,
    /// Failures that the request itself seems to cause.
    pub data: u32,
    /// Failures that the agent reported.
    pub attempts: u32,
    /// Attempts of this process for which no connection came about. They count against no budget: the rollout can't be
    /// the cause, and how long its agent is waited for bounds them.
    pub unreachable: u32,
}

/// What earlier processes did for a rollout that is still pending.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Prior {
    /// Number of the next attempt.
    pub attempt: u32,
    /// Its failed attempts.
    pub failures: Failures,
    /// Seconds that the longest of its attempts took, where it is known.
    pub seconds: Option<f64>,
    /// An attempt left something that the next one is to have judged.
    pub reuses_deliverable: bool,
}

impl Failures {
    /// Counts one more; gives how many count against that budget now.
    pub fn count(&mut self, budget: Budget) -> u32 {
        let of = match budget {
            Budget::Infra => &mut self.infra,
            Budget::RateLimit => &mut self.rate_limit,
            Budget::Data => &mut self.data,
            Budget::Attempts => &mut self.attempts,
        };
        *of = of.saturating_add(1);
        *of
    }

    /// Counts one more for which no connection came about; gives how many there are now.
    pub fn miss(&mut self) -> u32 {
        self.unreachable = self.unreachable.saturating_add(1);
        self.unreachable
    }

    /// One of the budgets is spent: the rollout is given up. The same rule as in
    /// `queries/expand/given_up.sql`, for what one process saw.
    pub fn spent(&self, budgets: &Budgets) -> bool {
        self.infra >= budgets.infra
            || self.rate_limit >= budgets.rate_limit
            || self.data >= budgets.data
            || self.attempts >= budgets.attempts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollout_is_given_up_when_one_budget_is_spent_and_not_before() {
        let budgets = Budgets {
            infra: 2,
            rate_limit: 9,
            data: 1,
            attempts: 3,
        };
        let mut failures = Failures::default();
        for budget in [Budget::Infra, Budget::RateLimit, Budget::Attempts] {
            assert_eq!(failures.count(budget), 1);
            assert!(!failures.spent(&budgets), "{budget:?}");
        }
        assert_eq!(failures.count(Budget::Infra), 2);
        assert!(failures.spent(&budgets));
    }
}
