-- The statistics of all agents, in the order in which they are written.
--
-- Columns: those of agent_statistics, and task_index, which is zero.

SELECT *, 0 AS task_index
FROM agent_statistics
ORDER BY agent_name, position
