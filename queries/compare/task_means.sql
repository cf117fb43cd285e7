-- The mean score of every task, by the task's key. Tasks of one agent with the same key are pooled.
--
-- Reads: scores, task_keys.
--
-- Columns:
--   agent_name   the agent
--   metric       name of the metric
--   task_key     key of the task
--   task_index   the task; the first one if tasks are pooled
--   count        rollouts that have the metric, at least one
--   mean         their mean
--   is_binary    whether each of them is 0 or 1

WITH measured AS (
    SELECT agent_name, metric, task_index, rollout_scores, list_statistics(rollout_scores) AS statistics
    FROM scores
),
described AS (
    SELECT
        measured.agent_name,
        measured.metric,
        task_keys.task_key,
        measured.task_index,
        measured.statistics['count'] AS count,
        measured.statistics['mean'] AS mean,
        -- For most lists, the smallest and largest score decide.
        CASE
            WHEN measured.statistics['min'] NOT IN (0.0, 1.0) OR measured.statistics['max'] NOT IN (0.0, 1.0)
                THEN false
            WHEN measured.statistics['min'] = measured.statistics['max'] THEN true
            ELSE cardinality(array_except(measured.rollout_scores, [0.0, 1.0, NULL])) = 0
        END AS is_binary
    FROM measured
    JOIN task_keys ON task_keys.agent_name = measured.agent_name AND task_keys.task_index = measured.task_index
    WHERE measured.statistics['count'] > 0 AND task_keys.task_key IS NOT NULL
)
SELECT
    agent_name,
    metric,
    task_key,
    min(task_index) AS task_index,
    CAST(sum(count) AS BIGINT) AS count,
    -- The mean of one task is left as it is: a product and a quotient would round it again.
    CASE WHEN count(*) = 1 THEN min(mean) ELSE sum(mean * count) / sum(count) END AS mean,
    bool_and(is_binary) AS is_binary
FROM described
GROUP BY agent_name, metric, task_key
ORDER BY agent_name, metric, task_key
