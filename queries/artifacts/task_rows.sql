-- The statistics of all tasks, in the order in which they are written.
--
-- Columns: those of task_statistics.

SELECT *
FROM task_statistics
ORDER BY agent_name, task_index, position
