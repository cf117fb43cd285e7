-- How many of the planned rollouts and tasks are complete.
--
-- Parameters:
--   by_agent = false   true: a task that several agents worked on counts once for each of them
--
-- Columns:
--   expected_rollout_rows           planned rollouts
--   completed_rollout_rows          planned rollouts that are done
--   missing_rollout_rows            planned rollouts that are missing
--   extra_rollout_rows              rollouts that were not planned
--   reward_profile_completion_pct   completed as a percentage of expected; 100 if nothing is expected
--   total_input_rows                tasks
--   complete_input_rows             tasks with all their rollouts
--   partial_input_rows              tasks with some of them
--   missing_input_rows              tasks with none
--   masked_rollout_rows             rollouts that are masked

WITH matched AS (
    SELECT CASE WHEN $by_agent THEN tasks.agent_name ELSE '' END AS agent_name, rollouts.task_index
    FROM tasks
    JOIN rollouts
        ON tasks.task_index = rollouts.task_index
        AND tasks.first_rollout_index <= rollouts.rollout_index
        AND tasks.first_rollout_index + tasks.num_repeats > rollouts.rollout_index
),
completed AS (
    SELECT agent_name, task_index, count(*) AS completed
    FROM matched
    GROUP BY agent_name, task_index
),
expected AS (
    SELECT CASE WHEN $by_agent THEN agent_name ELSE '' END AS agent_name, task_index, sum(num_repeats) AS expected
    FROM tasks
    GROUP BY CASE WHEN $by_agent THEN agent_name ELSE '' END, task_index
),
per_task AS (
    SELECT expected.expected, coalesce(completed.completed, 0) AS completed
    FROM expected
    LEFT JOIN completed
        ON completed.task_index = expected.task_index AND completed.agent_name = expected.agent_name
),
counted AS (
    SELECT
        coalesce(sum(expected), 0) AS expected,
        coalesce(sum(completed), 0) AS completed,
        count(*) AS tasks,
        count(*) FILTER (WHERE completed = expected) AS complete,
        count(*) FILTER (WHERE completed > 0 AND completed < expected) AS partial
    FROM per_task
)
SELECT
    expected AS expected_rollout_rows,
    completed AS completed_rollout_rows,
    expected - completed AS missing_rollout_rows,
    (SELECT count(*) FROM rollouts) - completed AS extra_rollout_rows,
    CASE WHEN expected = 0 THEN 100.0 ELSE 100.0 * completed / expected END AS reward_profile_completion_pct,
    tasks AS total_input_rows,
    complete AS complete_input_rows,
    partial AS partial_input_rows,
    tasks - complete - partial AS missing_input_rows,
    (SELECT count(*) FROM rollouts WHERE masked) AS masked_rollout_rows
FROM counted
