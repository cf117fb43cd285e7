-- Rollouts that are done or have failed, and are not sent again. A row stands for up to 64 rollouts of a task.
--
-- Reads: rollouts, failed_rollouts.
-- Columns: task_index, block (rollout_index / 64, rounded down), bits (bit rollout_index % 64 is set for those).
--
-- To find out whether a rollout is done, join it by task and block, and look at its bit. So a join keeps one bit of each
-- rollout in memory, instead of two numbers and an entry of a hash table.
SELECT
    task_index,
    rollout_index >> 6 AS block,
    bit_or(1 << (rollout_index & 63)) AS bits
FROM (
    SELECT task_index, rollout_index
    FROM rollouts
    UNION ALL
    SELECT task_index, rollout_index
    FROM failed_rollouts
)
GROUP BY task_index, rollout_index >> 6
