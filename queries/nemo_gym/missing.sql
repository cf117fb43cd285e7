-- The first ten planned rollouts that are missing.
--
-- Columns:
--   task_index      the task
--   rollout_index   the rollout

WITH asked AS (
    SELECT
        task_index,
        unnest(range(first_rollout_index, first_rollout_index + num_repeats)) AS rollout_index
    FROM tasks
)
SELECT asked.task_index, asked.rollout_index
FROM asked
LEFT ANTI JOIN rollouts
    ON rollouts.task_index = asked.task_index
    AND rollouts.rollout_index = asked.rollout_index
ORDER BY task_index, rollout_index
LIMIT 10
