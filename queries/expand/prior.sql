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
FROM done
RIGHT ANTI JOIN failures
    ON done.task_index = failures.task_index
    AND done.block = failures.rollout_index >> 6
    AND (done.bits >> (failures.rollout_index & 63)) & 1 = 1
