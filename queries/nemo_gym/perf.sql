-- The performance figures of the rollouts of every agent, masked ones included.
--
-- Columns:
--   agent_name   the agent
--   perf         JSON object

SELECT agent_name, perf
FROM rollouts
WHERE perf IS NOT NULL
