-- Mean, maximum, minimum, median and standard deviation of every metric, per task.
--
-- A metric is a number or boolean of the answer. Rollouts that lack a metric are left out of its statistics; count says
-- how many have it.
--
-- Parameters: none.
--
-- Columns:
--   agent_name     the agent
--   task_index     the task
--   metric         name of the metric
--   position       order in which metrics first appear in the task's rollouts, from 0
--   count          rollouts of the task that have the metric
--   num_rollouts   rollouts of the task
--   planned        planned rollouts of the agent for the task; null if unknown
--   mean           sum / count, summed pairwise in the order of rollouts
--   max, min       largest and smallest value
--   median         middle value, or the mean of the two middle ones
--   std            sqrt(sum((mean - value)^2) / (count - 1)); null for one value, but 0 if every metric of the task has
--                  one value and all its rollouts have this metric
--   stderr_iid     standard error of the mean, std / sqrt(count)
--   integer_max, integer_min   exact max and min, if rollouts with the metric have only integer and boolean metrics

WITH computed AS (
    SELECT
        agent_name,
        task_index,
        metric,
        num_rollouts,
        list_statistics(rollout_scores) AS statistics,
        first_rollout_index,
        ordinal,
        integers,
        integer_max,
        integer_min
    FROM scores
),
sizes AS (
    SELECT agent_name, task_index, count(*) AS num_metrics, max(statistics['std']) AS largest_std
    FROM computed
    GROUP BY agent_name, task_index
),
asked AS (
    SELECT agent_name, task_index, sum(num_repeats) AS planned
    FROM tasks
    GROUP BY agent_name, task_index
),
placed AS (
    SELECT
        sizes.agent_name,
        sizes.task_index,
        sum(num_metrics) OVER (ORDER BY sizes.agent_name, sizes.task_index ROWS UNBOUNDED PRECEDING) - num_metrics AS start,
        largest_std,
        planned
    FROM asked
    RIGHT JOIN sizes ON sizes.agent_name = asked.agent_name AND sizes.task_index = asked.task_index
),
-- Numbering all rows and subtracting those of earlier tasks is much faster than a window for each task.
numbered AS (
    SELECT
        *,
        CAST(row_number() OVER (ORDER BY agent_name, task_index, first_rollout_index, ordinal, metric) AS BIGINT) AS number
    FROM computed
),
known AS (
    SELECT
        numbered.*,
        number - start - 1 AS position,
        planned,
        statistics['count'] AS count,
        CASE
            WHEN largest_std IS NULL AND statistics['count'] = num_rollouts THEN 0.0
            ELSE statistics['std']
        END AS std
    FROM placed
    JOIN numbered ON numbered.agent_name = placed.agent_name AND numbered.task_index = placed.task_index
)
SELECT
    agent_name,
    task_index,
    metric,
    position,
    count,
    num_rollouts,
    planned,
    statistics['mean'] AS mean,
    statistics['max'] AS max,
    statistics['min'] AS min,
    statistics['median'] AS median,
    std,
    std / sqrt(count) AS stderr_iid,
    CASE WHEN integers = count THEN integer_max END AS integer_max,
    CASE WHEN integers = count THEN integer_min END AS integer_min
FROM known
-- The same order as by position, in which the rows are already.
ORDER BY agent_name, task_index, first_rollout_index, ordinal, metric
