-- The first rollout that has the key of an earlier rollout of the same agent.
--
-- Columns:
--   task_index      the task
--   rollout_index   the rollout

WITH counted AS (
    SELECT
        task_index,
        rollout_index,
        source_row,
        row_number() OVER (PARTITION BY agent_name, task_index, rollout_index ORDER BY source_row) AS nth
    FROM rollouts
)
SELECT task_index, rollout_index
FROM counted
WHERE nth = 2
ORDER BY source_row
LIMIT 1
