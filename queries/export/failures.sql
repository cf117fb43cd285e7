-- The answers that agents flagged as failures, in any order.
--
-- Reads: attempts.
-- Columns: task_index, rollout_index, attempt, sent_at, answer.
SELECT
    task_index,
    rollout_index,
    attempt,
    dispatched_at AS sent_at,
    answer
FROM attempts
WHERE outcome = 'agent_flagged' AND answer IS NOT NULL
