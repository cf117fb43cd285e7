-- The rollouts of some tasks, done or not.
--
-- Reads: tasks, rollouts, attempts. `$tasks` is replaced by a list of task indices, `$columns` by the number of rollouts
-- of a task that are wanted.
--
-- Columns: task_index, agent_name, rollout_index, reward (null if it is not done or has none), state (done, failed or
-- pending).
SELECT
    planned.task_index,
    planned.agent_name,
    planned.rollout_index,
    done.reward,
    CASE
        WHEN done.task_index IS NOT NULL THEN 'done'
        WHEN failed.task_index IS NOT NULL THEN 'failed'
        ELSE 'pending'
    END AS state
FROM (
    SELECT
        task_index,
        agent_name,
        unnest(range(first_rollout_index, first_rollout_index + num_repeats)) AS rollout_index
    FROM tasks
    WHERE task_index IN ($tasks)
) AS planned
LEFT JOIN (
    SELECT task_index, rollout_index, reward
    FROM rollouts
    WHERE task_index IN ($tasks)
) AS done
    ON planned.task_index = done.task_index AND planned.rollout_index = done.rollout_index
LEFT JOIN (
    SELECT DISTINCT task_index, rollout_index
    FROM attempts
    WHERE terminal AND task_index IN ($tasks)
) AS failed
    ON planned.task_index = failed.task_index AND planned.rollout_index = failed.rollout_index
WHERE planned.rollout_index < $columns
ORDER BY planned.task_index, planned.rollout_index
