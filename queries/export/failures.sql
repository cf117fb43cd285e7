-- Failed attempts, in any order: answers that agents flagged as failures, and attempts without an answer.
--
-- Reads: attempts.
--
-- Parameters:
--   without_answer = false   whether attempts without an answer are included, except those whose connection ended before
--                            an answer began, which NeMo Gym does not count, and those that were cut off
--
-- Columns: task_index, rollout_index, attempt, agent_name, sent_at, answer (as JSON; null where there is none), is_answered
-- (the agent gave it), outcome, http_status, error.
SELECT
    task_index,
    rollout_index,
    attempt,
    agent_name,
    dispatched_at AS sent_at,
    answer,
    outcome = 'agent_flagged' AS is_answered,
    outcome,
    http_status,
    error
FROM attempts
WHERE (outcome = 'agent_flagged' AND answer IS NOT NULL)
    OR (
        $without_answer AND server_ms IS NOT NULL
        AND (outcome IN ('data', 'timeout') OR (outcome = 'infra' AND http_status IS NOT NULL))
    )
