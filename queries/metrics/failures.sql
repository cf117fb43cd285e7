-- What became of the attempts of each agent: how often each kind of failure, and how often none.
--
-- Parameters: none.
--
-- Columns:
--   agent_name     the agent
--   outcome        ok, or the class of the failure
--   http_status    status of the answer; null where there was none
--   num_attempts   attempts that ended so
--   share          of the agent's attempts

SELECT
    agent_name,
    outcome,
    http_status,
    count(*) AS num_attempts,
    CAST(count(*) AS DOUBLE) / sum(count(*)) OVER (PARTITION BY agent_name) AS share
FROM attempts
GROUP BY agent_name, outcome, http_status
ORDER BY agent_name, num_attempts DESC, outcome, http_status
