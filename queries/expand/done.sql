-- Rollouts that are done or have failed, and are not sent again.
--
-- Reads: rollouts, failed_rollouts.
-- Columns: task_index, rollout_index.
SELECT task_index, rollout_index
FROM rollouts
UNION ALL
SELECT task_index, rollout_index
FROM failed_rollouts
