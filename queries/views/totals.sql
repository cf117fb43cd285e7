-- Every metric of an agent over all its tasks: what several families read of it, computed once.
--
-- Parameters: none.
--
-- Columns:
--   agent_name     the agent
--   metric         name of the metric
--   num_rollouts   rollouts of the agent
--   statistics     the statistics of all scores, see the function
--   integers, integer_max, integer_min   as in scores, over all tasks
--   first_task, first_rollout, first_ordinal   task and rollout in which the metric first appears, and its place among
--                  that rollout's metrics

SELECT
    agent_name,
    metric,
    max(agent_rollouts) AS num_rollouts,
    statistics(rollout_scores, start, agent_rollouts) AS statistics,
    sum(integers) AS integers,
    max(integer_max) AS integer_max,
    min(integer_min) AS integer_min,
    first_value(task_index ORDER BY task_index) AS first_task,
    first_value(first_rollout_index ORDER BY task_index) AS first_rollout,
    first_value(ordinal ORDER BY task_index) AS first_ordinal
FROM scores
GROUP BY agent_name, metric
