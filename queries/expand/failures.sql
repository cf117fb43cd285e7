-- What went wrong before with each rollout that something went wrong with.
--
-- Reads: attempts.
-- Columns: task_index, rollout_index, agent_name, attempt (number of the next one), infra_failures,
-- rate_limited_failures, data_failures, flagged_failures (attempts that count against each budget),
-- failure_terminal (the agent said never again).
--
-- An attempt that was interrupted, for which no connection came about (it has no server_ms), or whose answer was to be
-- forgotten, counts against nothing.
SELECT
    task_index,
    rollout_index,
    agent_name,
    max(attempt) + 1 AS attempt,
    count(*) FILTER (
        WHERE server_ms IS NOT NULL AND (outcome = 'timeout' OR (outcome = 'infra' AND http_status IS DISTINCT FROM 429))
    ) AS infra_failures,
    count(*) FILTER (WHERE outcome = 'infra' AND http_status = 429) AS rate_limited_failures,
    count(*) FILTER (WHERE outcome = 'data') AS data_failures,
    count(*) FILTER (WHERE outcome = 'agent_flagged') AS flagged_failures,
    bool_or(failure_terminal) AS failure_terminal
FROM attempts
WHERE outcome <> 'ok'
GROUP BY task_index, rollout_index, agent_name
