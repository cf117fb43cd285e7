-- The agents that have rollouts.
--
-- Columns:
--   agent_name    the agent
--   is_measured   1 if one of its rollouts is accepted, else 0

SELECT agent_name, max(CASE WHEN masked THEN 0 ELSE 1 END) AS is_measured
FROM rollouts
GROUP BY agent_name
