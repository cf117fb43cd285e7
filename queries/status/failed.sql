-- The failed rollouts of each agent, by the class of their last failure.
--
-- Reads: tasks, attempts, failed_rollouts.
-- Columns: agent_name, outcome (the class), num_failed.
SELECT agent_name, outcome, count(*) AS num_failed
FROM (
    SELECT
        failed.agent_name,
        failed.task_index,
        failed.rollout_index,
        last_value(attempts.outcome ORDER BY attempts.attempt) AS outcome
    FROM (
        SELECT tasks.agent_name, failed_rollouts.task_index, failed_rollouts.rollout_index
        FROM failed_rollouts
        INNER JOIN tasks
            ON failed_rollouts.task_index = tasks.task_index
            AND failed_rollouts.rollout_index >= tasks.first_rollout_index
            AND failed_rollouts.rollout_index < tasks.first_rollout_index + tasks.num_repeats
    ) AS failed
    INNER JOIN attempts
        ON failed.task_index = attempts.task_index
        AND failed.rollout_index = attempts.rollout_index
    WHERE attempts.outcome NOT IN ('ok', 'interrupted', 'superseded')
    GROUP BY failed.agent_name, failed.task_index, failed.rollout_index
) AS last_failures
GROUP BY agent_name, outcome
