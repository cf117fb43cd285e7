-- Rollouts that are not sent again.
--
-- Reads: rollouts, attempts.
-- Columns: task_index, rollout_index: answered, or given up for good (an attempt that is terminal).
SELECT task_index, rollout_index
FROM rollouts
UNION ALL
SELECT task_index, rollout_index
FROM attempts
WHERE terminal
