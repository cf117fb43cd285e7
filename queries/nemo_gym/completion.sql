-- How much of what was asked for is there.
--
-- Parameters:
--   by_agent = false   a task that several agents worked on counts once for each of them
--
-- Columns:
--   expected          rollouts that were asked for
--   completed         of these, the ones that are there
--   extra             rollouts that nobody asked for
--   tasks             tasks
--   complete_tasks    tasks with all their rollouts
--   partial_tasks     tasks with some of them
--   masked            rollouts that are masked

WITH matched AS (
    SELECT CASE WHEN $by_agent THEN tasks.agent_name ELSE '' END AS agent_name, rollouts.task_index
    FROM tasks
    JOIN rollouts
        ON tasks.task_index = rollouts.task_index
        AND tasks.first_rollout_index <= rollouts.rollout_index
        AND tasks.first_rollout_index + tasks.num_repeats > rollouts.rollout_index
),
completed AS (
    SELECT agent_name, task_index, count(*) AS completed
    FROM matched
    GROUP BY agent_name, task_index
),
expected AS (
    SELECT CASE WHEN $by_agent THEN agent_name ELSE '' END AS agent_name, task_index, sum(num_repeats) AS expected
    FROM tasks
    GROUP BY CASE WHEN $by_agent THEN agent_name ELSE '' END, task_index
),
per_task AS (
    SELECT expected.expected, coalesce(completed.completed, 0) AS completed
    FROM expected
    LEFT JOIN completed
        ON completed.task_index = expected.task_index AND completed.agent_name = expected.agent_name
)
SELECT
    coalesce(sum(expected), 0) AS expected,
    coalesce(sum(completed), 0) AS completed,
    (SELECT count(*) FROM rollouts) - coalesce(sum(completed), 0) AS extra,
    count(*) AS tasks,
    count(*) FILTER (WHERE completed = expected) AS complete_tasks,
    count(*) FILTER (WHERE completed > 0 AND completed < expected) AS partial_tasks,
    (SELECT count(*) FROM rollouts WHERE masked) AS masked
FROM per_task
