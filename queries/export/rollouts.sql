-- The answers of a run, in any order.
--
-- Reads: rollouts.
-- Columns: those of failures.sql.
SELECT
    task_index,
    rollout_index,
    attempt,
    agent_name,
    started_at AS sent_at,
    result AS answer,
    true AS is_answered,
    'ok' AS outcome,
    NULL AS http_status,
    '' AS error
FROM rollouts
