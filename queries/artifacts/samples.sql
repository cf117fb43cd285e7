-- What was asked of every task that has an accepted rollout.
--
-- Parameters:
--   split_agents = false   a task that several agents worked on stands once for each of them
--
-- Columns:
--   agent_name   the agent; empty unless agents are split
--   task_index   the task
--   expected     rollouts that were asked for, without those that are masked
--   request      the request of the first rollout that is there

WITH firsts AS (
    SELECT
        CASE WHEN $split_agents THEN agent_name ELSE '' END AS agent_name,
        task_index,
        min(rollout_index) AS rollout_index
    FROM accepted
    GROUP BY CASE WHEN $split_agents THEN agent_name ELSE '' END, task_index
),
masked AS (
    SELECT
        CASE WHEN $split_agents THEN agent_name ELSE '' END AS agent_name,
        task_index,
        count(*) AS masked
    FROM rollouts
    WHERE masked
    GROUP BY CASE WHEN $split_agents THEN agent_name ELSE '' END, task_index
),
expected AS (
    SELECT
        CASE WHEN $split_agents THEN agent_name ELSE '' END AS agent_name,
        task_index,
        sum(num_repeats) AS expected
    FROM tasks
    GROUP BY CASE WHEN $split_agents THEN agent_name ELSE '' END, task_index
)
SELECT
    firsts.agent_name,
    firsts.task_index,
    expected.expected - coalesce(masked.masked, 0) AS expected,
    tasks.request
FROM firsts
JOIN expected ON expected.task_index = firsts.task_index AND expected.agent_name = firsts.agent_name
LEFT JOIN masked ON masked.task_index = firsts.task_index AND masked.agent_name = firsts.agent_name
JOIN tasks
    ON tasks.task_index = firsts.task_index
    AND tasks.first_rollout_index <= firsts.rollout_index
    AND tasks.first_rollout_index + tasks.num_repeats > firsts.rollout_index
ORDER BY task_index, agent_name
