-- Rollouts that are not sent again.
--
-- Reads: rollouts, given_up.
-- Columns: task_index, rollout_index.
SELECT task_index, rollout_index
FROM rollouts
UNION ALL
SELECT task_index, rollout_index
FROM given_up
