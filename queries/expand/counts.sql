-- How much a sweep asks of each agent, and how much of that is done.
--
-- Reads: tasks, rollouts.
-- Columns: agent_name, num_tasks, num_rollouts, num_done.
SELECT
    planned.agent_name,
    planned.num_tasks,
    planned.num_rollouts,
    coalesce(done.num_done, 0) AS num_done
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
ORDER BY planned.agent_name
