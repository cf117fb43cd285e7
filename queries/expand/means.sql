-- What the rollouts of each agent that are done took on average.
--
-- Reads: rollouts.
-- Columns: agent_name, num_done, seconds (from request to answer), input_tokens, output_tokens (null if no answer says).
SELECT
    agent_name,
    count(*) AS num_done,
    avg(latency_ms) / 1000 AS seconds,
    avg(input_tokens) AS input_tokens,
    avg(output_tokens) AS output_tokens
FROM rollouts
GROUP BY agent_name
