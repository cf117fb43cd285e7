-- A task that several agents worked on, if there is one.
--
-- Columns:
--   task_index   the task

SELECT task_index
FROM rollouts
GROUP BY task_index
HAVING min(agent_name) <> max(agent_name)
LIMIT 1
