-- Earlier failures of the rollouts that are still pending.
--
-- Reads: failures, done.
-- Columns: task_index, rollout_index, attempt (number of the next one), infra_failures,
-- rate_limited_failures, data_failures, flagged_failures, seconds, reuses_deliverable.
SELECT
    failures.task_index,
    failures.rollout_index,
    failures.attempt,
    failures.infra_failures,
    failures.rate_limited_failures,
    failures.data_failures,
    failures.flagged_failures,
    failures.seconds,
    failures.reuses_deliverable
FROM failures
LEFT ANTI JOIN done
    ON failures.task_index = done.task_index
    AND failures.rollout_index = done.rollout_index
