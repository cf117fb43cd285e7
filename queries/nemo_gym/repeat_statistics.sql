-- Statistics of every metric over the accepted rollouts of one index, in the order in which they are written.
--
-- Columns:
--   agent_name      the agent
--   rollout_index   the index
--   name            mean, median, std, sem, min, max, p25, p75, ci_low_95 or ci_high_95, a slash, and the metric's name
--   value           the statistic of the rollouts that have the metric: std and sem are 0 for one value, quarters are
--                   linear between values, the interval is mean -+ t * sem, with Student's t at 0.975 and one degree of
--                   freedom less than there are values; for one value there is none

WITH places AS (
    SELECT agent_name, task_index, array_agg(rollout_index ORDER BY rollout_index) AS rollout_indices
    FROM accepted
    GROUP BY agent_name, task_index
),
placed AS (
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
    SELECT agent_name, metric, rollout_index, array_agg(score ORDER BY task_index) AS scores
    FROM placed
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
),
listed AS (
    SELECT
        agent_name,
        rollout_index,
        metric,
        unnest(range(0, 10)) AS place,
        unnest(['mean', 'median', 'std', 'sem', 'min', 'max', 'p25', 'p75', 'ci_low_95', 'ci_high_95']) AS statistic,
        unnest([
            statistics['mean'],
            statistics['median'],
            known_std,
            sem,
            statistics['min'],
            statistics['max'],
            quarters[1],
            quarters[2],
            statistics['mean'] - t * sem,
            statistics['mean'] + t * sem
        ]) AS value
    FROM spread
)
SELECT agent_name, rollout_index, statistic || '/' || metric AS name, value
FROM listed
WHERE value IS NOT NULL
ORDER BY agent_name, rollout_index, metric, place
