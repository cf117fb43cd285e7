-- Imported rollouts with the agents that their inputs name.
--
-- Columns: those of rollouts, and where each row was read.

SELECT
    imported_rollouts.* EXCEPT (agent_name),
    coalesce(tasks.agent_name, '') AS agent_name
FROM tasks
-- The join holds the keys of the inputs in memory and streams the rollouts.
RIGHT JOIN imported_rollouts
    ON tasks.task_index = imported_rollouts.task_index
    AND tasks.first_rollout_index = imported_rollouts.rollout_index
