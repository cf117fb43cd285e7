-- Calls that were sent and whose end is not known yet.
--
-- Reads: dispatches, attempts, tasks.
-- Columns: agent_name, num_in_flight.
SELECT
    tasks.agent_name,
    count(*) AS num_in_flight
FROM (
    SELECT DISTINCT
        dispatches.task_index,
        dispatches.rollout_index,
        dispatches.attempt
    FROM dispatches
    LEFT ANTI JOIN attempts
        ON dispatches.task_index = attempts.task_index
        AND dispatches.rollout_index = attempts.rollout_index
        AND dispatches.attempt = attempts.attempt
) AS calls
INNER JOIN tasks
    ON calls.task_index = tasks.task_index
    AND calls.rollout_index >= tasks.first_rollout_index
    AND calls.rollout_index < tasks.first_rollout_index + tasks.num_repeats
GROUP BY tasks.agent_name
