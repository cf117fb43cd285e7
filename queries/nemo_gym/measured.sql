-- The number of rollouts of every agent, and how many of them are accepted.
--
-- Columns:
--   agent_name       the agent
--   num_repeats      distinct rollout indices, including those of masked rollouts
--   measured         rollouts that are accepted
--   masked           rollouts that are masked
--   measured_tasks   tasks with rollouts that are accepted
--   tasks            tasks

WITH counted AS (
    SELECT agent_name, task_index, rollout_index, CASE WHEN masked THEN 1 ELSE 0 END AS masked
    FROM rollouts
)
SELECT
    agent_name,
    count(DISTINCT rollout_index) AS num_repeats,
    count(*) - sum(masked) AS measured,
    sum(masked) AS masked,
    count(DISTINCT CASE masked WHEN 0 THEN task_index END) AS measured_tasks,
    count(DISTINCT task_index) AS tasks
FROM counted
GROUP BY agent_name
ORDER BY agent_name
