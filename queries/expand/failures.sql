-- Counts the failed attempts of each rollout that has any.
--
-- Reads: attempts, and the functions failure_budget(outcome, http_status), is_terminal(answer, failure_terminal),
-- attempt_seconds(answer) and reuses_deliverable(answer). Which failure counts against which budget is decided by
-- failure_budget alone (src/retry/after_failure.rs).
--
-- Parameters:
--   retry_terminal_timeouts   whether failures that another attempt can mend are not terminal, whatever the agent said
--
-- Columns: task_index, rollout_index, agent_name, attempt (number of the next one), infra_failures,
-- rate_limited_failures, data_failures, flagged_failures (attempts that count against each budget), last_outcome,
-- failure_terminal (the agent asked for no further attempt), seconds (of the longest attempt), reuses_deliverable (an
-- attempt left a deliverable, and the next one has it judged).
--
-- An infra failure without server_ms got no connection, and counts against no budget.
SELECT
    task_index,
    rollout_index,
    agent_name,
    max(attempt) + 1 AS attempt,
    count(*) FILTER (WHERE budget = 'infra' AND server_ms IS NOT NULL) AS infra_failures,
    count(*) FILTER (WHERE budget = 'rate_limit') AS rate_limited_failures,
    count(*) FILTER (WHERE budget = 'data') AS data_failures,
    count(*) FILTER (WHERE budget = 'attempts') AS flagged_failures,
    last_value(outcome ORDER BY attempt) AS last_outcome,
    bool_or(CASE WHEN $retry_terminal_timeouts THEN is_terminal(answer, failure_terminal) ELSE failure_terminal END)
        AS failure_terminal,
    max(coalesce(CASE WHEN budget = 'attempts' THEN attempt_seconds(answer) ELSE NULL END, server_ms / 1000))
        AS seconds,
    bool_or(CASE WHEN budget = 'attempts' THEN reuses_deliverable(answer) ELSE FALSE END) AS reuses_deliverable
FROM (
    SELECT
        task_index,
        rollout_index,
        agent_name,
        attempt,
        outcome,
        failure_terminal,
        server_ms,
        answer,
        failure_budget(outcome, http_status) AS budget
    FROM attempts
    WHERE outcome <> 'ok'
) AS failed
GROUP BY task_index, rollout_index, agent_name
