-- The answers of a run, in any order.
--
-- Reads: rollouts.
-- Columns: task_index, rollout_index, attempt, sent_at, answer.
SELECT
    task_index,
    rollout_index,
    attempt,
    started_at AS sent_at,
    result AS answer
FROM rollouts
