-- The planned rollouts of each agent.
--
-- Reads: tasks.
-- Columns: agent_name, num_rollouts.
SELECT agent_name, sum(num_repeats) AS num_rollouts
FROM tasks
GROUP BY agent_name
ORDER BY agent_name
