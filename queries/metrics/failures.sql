-- The outcomes of the attempts of each agent, and how frequent each is.
--
-- Parameters: none.
--
-- Columns:
--   agent_name     the agent
--   outcome        ok, or the class of the failure
--   http_status    status of the answer; null if there was no answer
--   num_attempts   attempts with this outcome
--   share          num_attempts / all attempts of the agent

SELECT
    agent_name,
    outcome,
    http_status,
    count(*) AS num_attempts,
    CAST(count(*) AS DOUBLE) / sum(count(*)) OVER (PARTITION BY agent_name) AS share
FROM attempts
GROUP BY agent_name, outcome, http_status
ORDER BY agent_name, num_attempts DESC, outcome, http_status
