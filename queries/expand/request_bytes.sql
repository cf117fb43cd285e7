-- The bytes of the requests of each agent, about, of all its rollouts.
--
-- Reads: tasks.
-- Columns: agent_name, num_bytes.
SELECT
    agent_name,
    sum(num_repeats * octet_length(request)) AS num_bytes
FROM tasks
GROUP BY agent_name
