-- The scores of every task: a row for each agent, task and metric.
--
-- A metric is a number or boolean of the answer; names that begin with `_`, and mask_sample, are not metrics. Metric queries
-- read this table: it holds every number of the accepted rollouts once, and nothing else of them.
--
-- Parameters:
--   split_agents = true   one row for each agent of a task; with false the agents of a task are pooled, and agent_name is
--                         empty
--   reserved = false      true: names that begin with `_` are metrics as well, as in files of NeMo Gym 0.5
--   missing = 'drop'      how missing rollouts count: 'drop' leaves them out; 'zero' gives them 0 for every metric of their
--                         agent; 'low' and 'high' give them score_min and score_max, and leave out metrics with values
--                         outside that range
--   score_min = 0.0       the lowest possible score
--   score_max = 1.0       the highest possible score
--
-- Columns:
--   agent_name       the agent
--   metric           name of the metric
--   task_index       the task
--   rollout_scores   the scores of the task's rollouts by rollout_index; null where a rollout lacks the metric
--   num_rollouts     rollouts of the agent for the task
--   start            rollouts of the agent for earlier tasks
--   agent_rollouts   rollouts of the agent
--   first_rollout_index, ordinal   the rollout in which the metric first appears, and its place among that rollout's metrics
--   integers         rollouts that have the metric, and no metrics but integers and booleans
--   integer_max, integer_min       largest and smallest value of the metric in those

WITH entries AS (
    SELECT agent_name, unnest(map_keys(metrics)) AS metric, unnest(map_values(metrics)) AS value
    FROM accepted
    WHERE $missing <> 'drop'
),
ranges AS (
    SELECT agent_name, metric, min(value) AS min, max(value) AS max
    FROM entries
    GROUP BY agent_name, metric
),
counted AS (
    SELECT agent_name, metric
    FROM ranges
    WHERE $missing = 'zero' OR (min >= $score_min AND max <= $score_max)
),
names AS (
    SELECT agent_name, array_agg(metric) AS metrics
    FROM counted
    GROUP BY agent_name
),
chosen AS (
    SELECT
        CASE WHEN $split_agents THEN agent_name ELSE '' END AS agent_name,
        task_index,
        rollout_index,
        metrics,
        integer_metrics
    FROM accepted
    UNION ALL
    SELECT
        CASE WHEN $split_agents THEN absent.agent_name ELSE '' END AS agent_name,
        absent.task_index,
        absent.rollout_index,
        map(
            names.metrics,
            array_repeat(
                CASE $missing WHEN 'low' THEN $score_min WHEN 'high' THEN $score_max ELSE 0.0 END,
                cardinality(names.metrics)
            )
        ) AS metrics,
        NULL AS integer_metrics
    FROM names
    JOIN absent ON absent.agent_name = names.agent_name
),
sizes AS (
    SELECT agent_name, task_index, count(*) AS num_rollouts
    FROM chosen
    GROUP BY agent_name, task_index
),
placed AS (
    SELECT
        agent_name,
        task_index,
        num_rollouts,
        sum(num_rollouts) OVER (PARTITION BY agent_name ORDER BY task_index) - num_rollouts AS start,
        sum(num_rollouts) OVER (PARTITION BY agent_name) AS agent_rollouts
    FROM sizes
),
gathered AS (
    SELECT agent_name, task_index, unnest(gather_scores(rollout_index, metrics, integer_metrics)) AS score
    FROM chosen
    GROUP BY agent_name, task_index
)
SELECT
    placed.agent_name,
    score['metric'] AS metric,
    placed.task_index,
    score['values'] AS rollout_scores,
    placed.num_rollouts,
    placed.start,
    placed.agent_rollouts,
    score['first_rollout_index'] AS first_rollout_index,
    score['ordinal'] AS ordinal,
    score['integers'] AS integers,
    score['integer_max'] AS integer_max,
    score['integer_min'] AS integer_min
FROM placed
JOIN gathered ON gathered.agent_name = placed.agent_name AND gathered.task_index = placed.task_index
WHERE ($reserved OR NOT (starts_with(score['metric'], '_') OR score['metric'] = 'mask_sample'))
    AND (
        $missing NOT IN ('low', 'high')
        OR EXISTS (
            SELECT 1 FROM counted
            WHERE counted.metric = score['metric'] AND counted.agent_name = placed.agent_name
        )
    )
ORDER BY agent_name, metric, task_index
