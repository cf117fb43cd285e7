-- The statistics of tasks of which each has one agent, as if agents had been taken together.
--
-- Columns: those of task_statistics; agent_name is empty.

SELECT '' AS agent_name, * EXCEPT (agent_name)
FROM task_statistics
