-- Dispatches whose end is not known: they are in flight or, where no collector is alive, were cut off.
--
-- Reads: dispatches, attempts, tasks.
-- Columns: task_index, rollout_index, attempt, agent_name, dispatched_at, permit_wait_ms,
-- rate_wait_ms.
SELECT DISTINCT
    calls.task_index,
    calls.rollout_index,
    calls.attempt,
    tasks.agent_name,
    calls.dispatched_at,
    calls.permit_wait_ms,
    calls.rate_wait_ms
FROM (
    SELECT
        dispatches.task_index,
        dispatches.rollout_index,
        dispatches.attempt,
        dispatches.dispatched_at,
        dispatches.permit_wait_ms,
        dispatches.rate_wait_ms
    FROM dispatches
    LEFT ANTI JOIN attempts
        ON dispatches.task_index = attempts.task_index
        AND dispatches.rollout_index = attempts.rollout_index
        AND dispatches.dispatched_at = attempts.dispatched_at
) AS calls
INNER JOIN tasks
    ON calls.task_index = tasks.task_index
    AND calls.rollout_index >= tasks.first_rollout_index
    AND calls.rollout_index < tasks.first_rollout_index + tasks.num_repeats
ORDER BY calls.task_index, calls.rollout_index, calls.attempt
