-- The rollouts that are still pending, one row each, in the order of the input.
--
-- Reads: tasks, done.
-- Columns: task_index, rollout_index, agent_name, request.
--
-- The join holds `done` in memory and streams the other side in its order, so that the repeats never exist all at once.
SELECT
    pending.task_index,
    pending.rollout_index,
    pending.agent_name,
    pending.request
FROM done
RIGHT ANTI JOIN (
    SELECT
        task_index,
        unnest(range(first_rollout_index, first_rollout_index + num_repeats)) AS rollout_index,
        agent_name,
        request
    FROM tasks
) AS pending
    ON done.task_index = pending.task_index
    AND done.block = pending.rollout_index >> 6
    AND (done.bits >> (pending.rollout_index & 63)) & 1 = 1
