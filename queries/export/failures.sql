-- What failed, in any order: the answers that agents flagged as failures, and the attempts that gave no answer.
--
-- Reads: attempts.
--
-- Parameters:
--   without_answer = false   attempts that gave no answer as well, but for those that reached nobody or were cut off
--
-- Columns: task_index, rollout_index, attempt, sent_at, answer (null where there is none), outcome, http_status, error.
SELECT
    task_index,
    rollout_index,
    attempt,
    dispatched_at AS sent_at,
    answer,
    outcome,
    http_status,
    error
FROM attempts
WHERE (outcome = 'agent_flagged' AND answer IS NOT NULL)
    OR ($without_answer AND server_ms IS NOT NULL AND outcome IN ('infra', 'data', 'timeout'))
