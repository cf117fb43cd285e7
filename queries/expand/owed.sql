-- The rollouts that are still owed, one row each, in the order of the input.
--
-- Reads: tasks, done, failures.
-- Columns: task_index, rollout_index, agent_name, request, attempt (number of the next one),
-- infra_failures, rate_limited_failures, data_failures, flagged_failures (so far).
--
-- The sides with `done` and `failures` are those that are held in memory: a few integers a rollout.
-- The other streams, so that repeats are never all there at once, and its order is kept.
SELECT
    owed.task_index,
    owed.rollout_index,
    owed.agent_name,
    owed.request,
    coalesce(failures.attempt, 0) AS attempt,
    coalesce(failures.infra_failures, 0) AS infra_failures,
    coalesce(failures.rate_limited_failures, 0) AS rate_limited_failures,
    coalesce(failures.data_failures, 0) AS data_failures,
    coalesce(failures.flagged_failures, 0) AS flagged_failures
FROM failures
RIGHT JOIN (
    SELECT
        planned.task_index,
        planned.rollout_index,
        planned.agent_name,
        planned.request
    FROM done
    RIGHT ANTI JOIN (
        SELECT
            task_index,
            unnest(range(first_rollout_index, first_rollout_index + num_repeats)) AS rollout_index,
            agent_name,
            request
        FROM tasks
    ) AS planned
        ON done.task_index = planned.task_index
        AND done.rollout_index = planned.rollout_index
) AS owed
    ON failures.task_index = owed.task_index
    AND failures.rollout_index = owed.rollout_index
