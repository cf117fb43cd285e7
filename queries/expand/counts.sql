-- The tasks and rollouts of each agent, and how many are done and failed.
--
-- Reads: tasks, rollouts, failed_rollouts.
-- Columns: agent_name, num_tasks, num_rollouts, num_done, num_failed (retries exhausted, or the agent asked for no further
-- attempt).
SELECT
    planned.agent_name,
    planned.num_tasks,
    planned.num_rollouts,
    coalesce(done.num_done, 0) AS num_done,
    coalesce(failed.num_failed, 0) AS num_failed
FROM (
    SELECT
        agent_name,
        count(DISTINCT task_index) AS num_tasks,
        sum(num_repeats) AS num_rollouts
    FROM tasks
    GROUP BY agent_name
) AS planned
LEFT JOIN (
    SELECT agent_name, count(*) AS num_done
    FROM rollouts
    GROUP BY agent_name
) AS done ON planned.agent_name = done.agent_name
LEFT JOIN (
    SELECT agent_name, count(*) AS num_failed
    FROM failed_rollouts
    GROUP BY agent_name
) AS failed ON planned.agent_name = failed.agent_name
ORDER BY planned.agent_name
