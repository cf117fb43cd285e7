-- The first five tasks of a run that its changed input no longer has, or has with fewer repeats.
--
-- Reads: tasks_before, tasks.
-- Columns: source_file, source_line (of the run's first line of the task), task_index, num_repeats
-- (before), num_repeats_now (null if the task is missing or has changed).
SELECT
    earlier.source_file,
    earlier.source_line,
    earlier.task_index,
    earlier.num_repeats,
    later.num_repeats AS num_repeats_now
FROM (
    SELECT
        task_index,
        agent_name,
        task_digest,
        min(first_rollout_index) AS first_rollout_index,
        sum(num_repeats) AS num_repeats,
        min(source_file) AS source_file,
        min(source_line) AS source_line
    FROM tasks_before
    GROUP BY task_index, agent_name, task_digest
) AS earlier
LEFT JOIN (
    SELECT
        task_index,
        agent_name,
        task_digest,
        min(first_rollout_index) AS first_rollout_index,
        sum(num_repeats) AS num_repeats
    FROM tasks
    GROUP BY task_index, agent_name, task_digest
) AS later
    ON earlier.task_index = later.task_index
    AND earlier.agent_name = later.agent_name
    AND earlier.task_digest = later.task_digest
    AND earlier.first_rollout_index = later.first_rollout_index
WHERE later.num_repeats IS NULL OR later.num_repeats < earlier.num_repeats
ORDER BY earlier.source_file, earlier.source_line
LIMIT 5
