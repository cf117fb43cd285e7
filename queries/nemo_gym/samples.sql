-- The request of every task that has an accepted rollout.
--
-- Parameters:
--   split_agents = false   true: a row for each agent that worked on a task
--
-- Columns:
--   agent_name   the agent; empty unless agents are split
--   task_index   the task
--   expected     planned rollouts, without masked ones
--   request      request of the first accepted rollout

WITH there AS (
    SELECT
        CASE WHEN $split_agents THEN agent_name ELSE '' END AS agent_name,
        task_index,
        min(CASE WHEN masked THEN NULL ELSE rollout_index END) AS first_index,
        sum(CASE WHEN masked THEN 1 ELSE 0 END) AS masked
    FROM rollouts
    GROUP BY CASE WHEN $split_agents THEN agent_name ELSE '' END, task_index
),
asked AS (
    SELECT
        CASE WHEN $split_agents THEN agent_name ELSE '' END AS agent_name,
        task_index,
        sum(num_repeats) AS expected
    FROM tasks
    GROUP BY CASE WHEN $split_agents THEN agent_name ELSE '' END, task_index
)
SELECT
    there.agent_name,
    there.task_index,
    asked.expected - there.masked AS expected,
    tasks.request
FROM there
JOIN asked ON asked.task_index = there.task_index AND asked.agent_name = there.agent_name
JOIN tasks
    ON tasks.task_index = there.task_index
    AND tasks.first_rollout_index <= there.first_index
    AND tasks.first_rollout_index + tasks.num_repeats > there.first_index
ORDER BY task_index, agent_name
