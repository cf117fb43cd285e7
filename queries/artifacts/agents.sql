-- The agents that have rollouts.
--
-- Columns:
--   agent_name   the agent

SELECT DISTINCT agent_name
FROM rollouts
