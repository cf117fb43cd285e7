-- What stands of every rollout in a report: keys and numbers, never the answer's text.
--
-- Parameters:
--   split_agents = true   rollouts of one agent stand together; with false, those of one task
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
FROM rollouts
ORDER BY agent_name, task_index, rollout_index
