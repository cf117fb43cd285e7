-- The size of a run's tasks, by agent.
--
-- Reads: tasks.
-- Columns: agent_name, num_rows (lines of the input), num_rollouts, num_bytes (of the requests).
SELECT
    agent_name,
    count(*) AS num_rows,
    sum(num_repeats) AS num_rollouts,
    sum(octet_length(request)) AS num_bytes
FROM tasks
GROUP BY agent_name
ORDER BY agent_name
