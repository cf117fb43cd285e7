-- The rollouts of each agent that were done or failed within a time span.
--
-- Reads: attempts.
-- Parameters: $since and $until (timestamps, both included).
-- Columns: agent_name, num_rollouts.
SELECT agent_name, count(*) AS num_rollouts
FROM attempts
WHERE (outcome = 'ok' OR terminal) AND finished_at BETWEEN $since AND $until
GROUP BY agent_name
