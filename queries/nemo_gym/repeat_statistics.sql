-- Statistics of every metric over the accepted rollouts of one index, in the order in which they are written.
--
-- Columns:
--   agent_name      the agent
--   rollout_index   the index
--   metric          name of the metric
--   mean, median, std, sem, min, max, p25, p75   of the rollouts that have the metric; std and sem are 0 for one value,
--                   p25 and p75 are interpolated linearly
--   ci_low_95, ci_high_95   mean -+ t * sem, with Student's t at 0.975 and n - 1 degrees of freedom for n
--                   values; null for one value

WITH places AS (
    SELECT agent_name, task_index, ordered_numbers(CAST(rollout_index AS DOUBLE) ORDER BY rollout_index) AS rollout_indices
    FROM accepted
    GROUP BY agent_name, task_index
),
listed AS (
    SELECT
        scores.agent_name,
        scores.metric,
        scores.task_index,
        unnest(places.rollout_indices) AS rollout_index,
        unnest(scores.rollout_scores) AS score
    FROM places
    JOIN scores ON scores.agent_name = places.agent_name AND scores.task_index = places.task_index
),
gathered AS (
    SELECT agent_name, metric, rollout_index, ordered_numbers(score ORDER BY task_index) AS scores
    FROM listed
    WHERE score IS NOT NULL
    GROUP BY agent_name, metric, rollout_index
),
computed AS (
    SELECT
        agent_name,
        rollout_index,
        metric,
        list_statistics(scores) AS statistics,
        list_quantiles(scores, [0.25, 0.75]) AS quarters
    FROM gathered
),
spread AS (
    SELECT
        *,
        coalesce(statistics['std'], 0.0) AS known_std,
        coalesce(statistics['std'], 0.0) / sqrt(statistics['count']) AS sem,
        CASE WHEN statistics['count'] > 1 THEN student_t_quantile(0.975, CAST(statistics['count'] - 1 AS DOUBLE)) END AS t
    FROM computed
)
SELECT
    agent_name,
    rollout_index,
    metric,
    statistics['mean'] AS mean,
    statistics['median'] AS median,
    known_std AS std,
    sem,
    statistics['min'] AS min,
    statistics['max'] AS max,
    quarters[1] AS p25,
    quarters[2] AS p75,
    statistics['mean'] - t * sem AS ci_low_95,
    statistics['mean'] + t * sem AS ci_high_95
FROM spread
ORDER BY agent_name, rollout_index, metric
