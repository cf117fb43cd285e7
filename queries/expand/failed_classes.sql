-- The failed rollouts of each agent, by the class of their last failure.
--
-- Reads: failed_rollouts.
-- Columns: agent_name, class, num_rollouts.
SELECT agent_name, last_outcome AS class, count(*) AS num_rollouts
FROM failed_rollouts
GROUP BY agent_name, last_outcome
