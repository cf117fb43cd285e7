-- The statistics of all agents, in the order in which they are written.
--
-- Columns: those of agent_statistics.

SELECT *
FROM agent_statistics
ORDER BY agent_name, position
