-- The statistics of all tasks, in the order in which the tasks are written.
--
-- Parameters:
--   by_task = false   true: sorted by task, then by agent; false: by agent, then by task
--
-- Columns: those of task_statistics, and run_position, which is zero.

SELECT *, 0 AS run_position
FROM task_statistics
ORDER BY CASE WHEN $by_task THEN task_index ELSE 0 END, agent_name, task_index
