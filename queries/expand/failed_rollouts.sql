-- Rollouts that have failed: one of their budgets is spent, or the agent asked for no further attempt.
--
-- Reads: failures, budgets, rollouts.
-- Columns: task_index, rollout_index, agent_name, last_outcome.
--
-- The current budgets apply, not those at the time of the attempts: with larger ones, a resume tries again.
SELECT
    failures.task_index,
    failures.rollout_index,
    failures.agent_name,
    failures.last_outcome
FROM failures
INNER JOIN budgets ON failures.agent_name = budgets.agent_name
LEFT ANTI JOIN rollouts
    ON failures.task_index = rollouts.task_index
    AND failures.rollout_index = rollouts.rollout_index
WHERE failures.failure_terminal
    OR failures.infra_failures >= budgets.infra
    OR failures.rate_limited_failures >= budgets.rate_limit
    OR failures.data_failures >= budgets.data
    OR failures.flagged_failures >= budgets.attempts
