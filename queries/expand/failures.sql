-- What went wrong before with each rollout that something went wrong with.
--
-- Reads: attempts, and the functions is_terminal(answer, failure_terminal), attempt_seconds(answer) and
-- reuses_deliverable(answer).
--
-- Parameters:
--   retry_terminal_timeouts   whether failures that another attempt can mend are not terminal, whatever the agent said
--
-- Columns: task_index, rollout_index, agent_name, attempt (number of the next one), infra_failures,
-- rate_limited_failures, data_failures, flagged_failures (attempts that count against each budget),
-- failure_terminal (the agent said never again), seconds (that the longest attempt took), reuses_deliverable (the next
-- attempt is to have judged what one left).
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
    bool_or(CASE WHEN $retry_terminal_timeouts THEN is_terminal(answer, failure_terminal) ELSE failure_terminal END)
        AS failure_terminal,
    max(coalesce(CASE WHEN outcome = 'agent_flagged' THEN attempt_seconds(answer) ELSE NULL END, server_ms / 1000))
        AS seconds,
    bool_or(CASE WHEN outcome = 'agent_flagged' THEN reuses_deliverable(answer) ELSE FALSE END) AS reuses_deliverable
FROM attempts
WHERE outcome <> 'ok'
GROUP BY task_index, rollout_index, agent_name
