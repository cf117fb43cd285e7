-- The planned rollouts that are missing.
--
-- Parameters:
--   missing = 'drop'   how they count: 'drop' leaves them out (the table is empty); 'zero', 'low' and 'high' give them a
--                      score
--
-- Columns:
--   agent_name      the agent
--   task_index      the task
--   rollout_index   the rollout

WITH planned AS (
    SELECT
        agent_name,
        task_index,
        unnest(range(first_rollout_index, first_rollout_index + num_repeats)) AS rollout_index
    FROM tasks
    WHERE $missing <> 'drop'
)
SELECT planned.agent_name, planned.task_index, planned.rollout_index
FROM planned
LEFT ANTI JOIN rollouts
    ON planned.task_index = rollouts.task_index
    AND planned.rollout_index = rollouts.rollout_index
    AND planned.agent_name = rollouts.agent_name
