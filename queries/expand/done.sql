-- Rollouts that are done or have failed, and are not sent again: up to 64 of a task in a row.
--
-- Reads: rollouts, failed_rollouts.
-- Columns: task_index, block (rollout_index / 64, rounded down), bits (bit rollout_index % 64 is set for those).
--
-- Who asks whether a rollout is done joins it by task and block, and looks at its bit: the join holds a bit for a
-- rollout in place of two numbers and an entry of a hash table.
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
