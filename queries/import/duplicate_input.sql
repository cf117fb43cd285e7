-- The first row of the inputs that has the key of an earlier row.
--
-- Columns:
--   task_index      the task
--   rollout_index   the rollout

WITH counted AS (
    SELECT
        task_index,
        first_rollout_index AS rollout_index,
        source_row,
        row_number() OVER (PARTITION BY task_index, first_rollout_index ORDER BY source_row) AS nth
    FROM tasks
)
SELECT task_index, rollout_index
FROM counted
WHERE nth = 2
ORDER BY source_row
LIMIT 1
