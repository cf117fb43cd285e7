-- The smallest key that two rollouts of one agent share.
--
-- Columns:
--   task_index      the task
--   rollout_index   the rollout

SELECT task_index, rollout_index
FROM rollouts
GROUP BY agent_name, task_index, rollout_index
HAVING count(*) > 1
ORDER BY task_index, rollout_index
LIMIT 1
