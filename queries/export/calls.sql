-- The model calls of agents that rollstream runs itself, in the order of attempts and calls.
--
-- Reads: calls.
-- Columns: task_index, rollout_index, attempt, call, retry, name, outcome, http_status, started_at and finished_at
-- (microseconds), latency_ms, input_tokens, output_tokens.
SELECT
    task_index,
    rollout_index,
    attempt,
    call,
    retry,
    name,
    outcome,
    http_status,
    started_at,
    finished_at,
    latency_ms,
    input_tokens,
    output_tokens
FROM calls
WHERE kind = 'model'
ORDER BY task_index, rollout_index, attempt, call
