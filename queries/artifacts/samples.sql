-- What was asked of every task that has a rollout.
--
-- Columns:
--   task_index   the task
--   expected     rollouts that were asked for
--   request      the request of the first rollout that is there

WITH firsts AS (
    SELECT task_index, min(rollout_index) AS rollout_index
    FROM rollouts
    GROUP BY task_index
),
expected AS (
    SELECT task_index, sum(num_repeats) AS expected
    FROM tasks
    GROUP BY task_index
)
SELECT firsts.task_index, expected.expected, tasks.request
FROM firsts
JOIN expected ON expected.task_index = firsts.task_index
JOIN tasks
    ON tasks.task_index = firsts.task_index
    AND tasks.first_rollout_index <= firsts.rollout_index
    AND tasks.first_rollout_index + tasks.num_repeats > firsts.rollout_index
ORDER BY task_index
