-- Task and rollout indices within the union of several runs.
--
-- Two tasks are the same if their content is the same. Shards of one sweep keep their indices. If an index stands for
-- different tasks, or two runs have rollouts with the same indices, tasks are renumbered in the order of the runs, and the
-- rollouts of later runs follow those of earlier ones.
--
-- Reads: all_tasks (the tasks of all runs, with a column run).
-- Columns: run, task_index (both within the run), new_task_index, rollout_offset (added to the run's rollout_index),
-- is_renumbered (the same in all rows).

WITH sized AS (
    SELECT
        run,
        task_index,
        min(task_digest) AS task_digest,
        min(first_rollout_index) AS first_rollout,
        max(first_rollout_index + num_repeats) AS end_rollout
    FROM all_tasks
    GROUP BY run, task_index
),
identified AS (
    SELECT
        *,
        row_number() OVER (ORDER BY run, task_index) AS place,
        row_number() OVER (PARTITION BY run, task_digest ORDER BY task_index) AS occurrence
    FROM sized
),
compared AS (
    SELECT
        *,
        min(place) OVER (PARTITION BY task_digest, occurrence) AS first_place,
        sum(end_rollout) OVER (PARTITION BY task_digest, occurrence ORDER BY run) - end_rollout AS rollout_offset,
        max(end_rollout) OVER (
            PARTITION BY task_digest, occurrence ORDER BY first_rollout, run
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS end_before
    FROM identified
),
judged AS (
    SELECT
        *,
        min(first_place) OVER (PARTITION BY task_index) <> max(first_place) OVER (PARTITION BY task_index)
            OR min(task_index) OVER (PARTITION BY first_place) <> task_index AS is_other_task,
        coalesce(end_before > first_rollout, FALSE) AS is_same_rollout
    FROM compared
),
decided AS (
    SELECT
        *,
        max(CASE WHEN is_other_task OR is_same_rollout THEN 1 ELSE 0 END) OVER () = 1 AS is_renumbered,
        dense_rank() OVER (ORDER BY first_place) - 1 AS rank
    FROM judged
)
SELECT
    run,
    task_index,
    CASE WHEN is_renumbered THEN CAST(rank AS BIGINT) ELSE task_index END AS new_task_index,
    CASE WHEN is_renumbered THEN CAST(rollout_offset AS BIGINT) ELSE 0 END AS rollout_offset,
    is_renumbered
FROM decided
