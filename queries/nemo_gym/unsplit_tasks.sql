-- The statistics of tasks by task alone, for a run in which each task has one agent.
--
-- Columns: those of task_statistics; agent_name is empty.

SELECT '' AS agent_name, * EXCEPT (agent_name)
FROM task_statistics
