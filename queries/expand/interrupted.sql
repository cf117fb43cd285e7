-- Dispatches whose end nobody saw: the collector was killed, or its machine lost.
--
-- Reads: dispatches, attempts, tasks.
-- Columns: task_index, rollout_index, attempt, agent_name, dispatched_at, permit_wait_ms,
-- rate_wait_ms.
SELECT DISTINCT
    cut_off.task_index,
    cut_off.rollout_index,
    cut_off.attempt,
    tasks.agent_name,
    cut_off.dispatched_at,
    cut_off.permit_wait_ms,
    cut_off.rate_wait_ms
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
        AND dispatches.attempt = attempts.attempt
) AS cut_off
INNER JOIN tasks
    ON cut_off.task_index = tasks.task_index
    AND cut_off.rollout_index >= tasks.first_rollout_index
    AND cut_off.rollout_index < tasks.first_rollout_index + tasks.num_repeats
ORDER BY cut_off.task_index, cut_off.rollout_index, cut_off.attempt
