-- Imported rollouts that have an agent.
--
-- Columns: those of rollouts, and where each row was read.

SELECT *
FROM imported_rollouts
WHERE agent_name <> ''
