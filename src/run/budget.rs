use crate::agent::Budget;
use crate::config::Budgets;

/// Failed attempts at a rollout so far, by what they count against.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Failures {
    pub(super) infra: u32,
    pub(super) rate_limit: u32,
    pub(super) data: u32,
    pub(super) attempts: u32,
}

impl Failures {
    /// Counts one more; gives how many count against that budget now.
    pub(super) fn count(&mut self, budget: Budget) -> u32 {
        let of = match budget {
            Budget::Infra => &mut self.infra,
            Budget::RateLimit => &mut self.rate_limit,
            Budget::Data => &mut self.data,
            Budget::Attempts => &mut self.attempts,
        };
        *of = of.saturating_add(1);
        *of
    }

    /// One of the budgets is spent: the rollout is given up. The same rule as in
    /// `queries/expand/given_up.sql`, for what this process saw.
    pub(super) fn spent(&self, budgets: &Budgets) -> bool {
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
