-- The first accepted rollouts of all tasks of an agent, the second ones, and so on: by rollout index.
--
-- Columns:
--   agent_name      the agent
--   rollout_index   the index
--   num_tasks       tasks that have such a rollout

SELECT agent_name, rollout_index, count(DISTINCT task_index) AS num_tasks
FROM accepted
GROUP BY agent_name, rollout_index
ORDER BY agent_name, rollout_index
