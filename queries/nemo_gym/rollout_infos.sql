-- The entry of every accepted rollout in a report: keys and numbers, never the answer's text.
--
-- Parameters:
--   split_agents = true   true: the rollouts of an agent stand together; false: those of a task
--   by_task = false       true: sorted by task, then by agent
--
-- Columns:
--   agent_name      the agent; empty unless agents are split
--   task_index      the task
--   rollout_index   the rollout
--   info            JSON object with the reward and the numbers of the answer

SELECT
    CASE WHEN $split_agents THEN agent_name ELSE '' END AS agent_name,
    task_index,
    rollout_index,
    info
FROM accepted
ORDER BY CASE WHEN $by_task THEN task_index ELSE 0 END, agent_name, task_index, rollout_index
