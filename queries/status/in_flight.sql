-- Attempts that were sent and have no known end yet.
--
-- Reads: unanswered.
-- Columns: agent_name, num_rollouts.
SELECT
    agent_name,
    count(*) AS num_rollouts
FROM unanswered
GROUP BY agent_name
