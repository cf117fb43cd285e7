-- The first ten rollouts that were not planned.
--
-- Columns:
--   task_index      the task
--   rollout_index   the rollout

SELECT rollouts.task_index, rollouts.rollout_index
FROM rollouts
LEFT ANTI JOIN tasks
    ON tasks.task_index = rollouts.task_index
    AND tasks.first_rollout_index <= rollouts.rollout_index
    AND tasks.first_rollout_index + tasks.num_repeats > rollouts.rollout_index
ORDER BY task_index, rollout_index
LIMIT 10
