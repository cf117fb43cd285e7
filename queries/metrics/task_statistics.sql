-- Mean, maximum, minimum, median and standard deviation of every metric, per task.
--
-- A metric is a number or boolean of the answer. A rollout that lacks a metric is left out of that
-- metric's statistics; count says how many have it.
--
-- Parameters:
--   split_agents = true   a task that several agents worked on counts once for each of them; with
--                         false the agents are taken together, and agent_name is empty
--
-- Columns:
--   agent_name     the agent
--   task_index     the task
--   metric         name of the metric
--   position       order in which metrics first appear in the task's rollouts, from 0
--   count          rollouts of the task that have the metric
--   num_rollouts   rollouts of the task
--   mean           sum / count, summed pairwise in the order of rollouts
--   max, min       largest and smallest value
--   median         middle value, or the mean of the two middle ones
--   std            sqrt(sum((mean - value)^2) / (count - 1)); null for one value, but 0 where that is so
--                  for every metric of the task, and all its rollouts have this one
--   integer_max, integer_min   max and min exactly, where all rollouts that have the metric hold nothing
--                  but integers and booleans
--
-- Rows pass in the order of tasks, so that no more than a task's values are held at a time: they are
-- gathered in arrays for the second look that a deviation takes.

WITH chosen AS (
    SELECT
        CASE WHEN $split_agents THEN agent_name ELSE '' END AS agent_name,
        task_index,
        rollout_index,
        metrics,
        integer_metrics
    FROM rollouts
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
        CAST(row_number() OVER (PARTITION BY agent_name, task_index ORDER BY rollout_index) - 1 AS BIGINT) AS place,
        metrics,
        integer_metrics
    FROM chosen
),
entries AS (
    SELECT
        placed.agent_name,
        placed.task_index,
        sizes.num_rollouts,
        placed.place,
        unnest(range(cardinality(placed.metrics))) AS ordinal,
        unnest(map_keys(placed.metrics)) AS metric,
        unnest(map_values(placed.metrics)) AS value,
        unnest(map_values(placed.integer_metrics)) AS integer_value
    FROM sizes
    JOIN placed USING (agent_name, task_index)
),
gathered AS (
    SELECT
        agent_name,
        task_index,
        metric,
        num_rollouts,
        count(value) AS count,
        pairwise_sum(value, place, num_rollouts) / count(value) AS mean,
        max(value) AS max,
        min(value) AS min,
        0.0 + median(value) AS median,
        count(integer_value) AS integers,
        max(integer_value) AS integer_max,
        min(integer_value) AS integer_min,
        -- Far more metrics than a rollout can have.
        min(place * 1000000 + ordinal) AS first,
        array_agg(value) AS values,
        array_agg(place) AS places
    FROM entries
    GROUP BY agent_name, task_index, metric, num_rollouts
),
deviations AS (
    SELECT
        agent_name,
        task_index,
        metric,
        num_rollouts,
        named_struct(
            'count', count,
            'mean', mean,
            'max', max,
            'min', min,
            'median', median,
            'integer_max', CASE WHEN integers = count THEN integer_max END,
            'integer_min', CASE WHEN integers = count THEN integer_min END,
            'first', first
        ) AS known,
        mean - unnest(values) AS deviation,
        unnest(places) AS place
    FROM gathered
),
statistics AS (
    SELECT
        agent_name,
        task_index,
        metric,
        num_rollouts,
        first_value(known) AS known,
        CASE WHEN count(*) > 1 THEN nanvl(sqrt(
            pairwise_sum(deviation * deviation, place, num_rollouts) / (count(*) - 1)
        ), NULL) END AS std
    FROM deviations
    GROUP BY agent_name, task_index, metric, num_rollouts
),
tasks_of AS (
    SELECT
        agent_name,
        task_index,
        num_rollouts,
        max(std) AS largest_std,
        array_agg(named_struct('metric', metric, 'known', known, 'std', std)) AS metrics
    FROM statistics
    GROUP BY agent_name, task_index, num_rollouts
),
listed AS (
    SELECT agent_name, task_index, num_rollouts, largest_std, unnest(metrics) AS one
    FROM tasks_of
)
SELECT
    agent_name,
    task_index,
    one['metric'] AS metric,
    CAST(row_number() OVER (PARTITION BY agent_name, task_index ORDER BY one['known']['first']) - 1 AS BIGINT)
        AS position,
    one['known']['count'] AS count,
    num_rollouts,
    one['known']['mean'] AS mean,
    one['known']['max'] AS max,
    one['known']['min'] AS min,
    one['known']['median'] AS median,
    CASE
        WHEN largest_std IS NULL AND one['known']['count'] = num_rollouts THEN 0.0
        ELSE one['std']
    END AS std,
    one['known']['integer_max'] AS integer_max,
    one['known']['integer_min'] AS integer_min
FROM listed
ORDER BY agent_name, task_index, position
