-- Mean, maximum, minimum, median and standard deviation of every metric, per agent.
--
-- A metric is a number or boolean of the answer. A rollout that lacks a metric is left out of that
-- metric's statistics; count says how many have it.
--
-- Parameters: none.
--
-- Columns:
--   agent_name     the agent
--   metric         name of the metric
--   position       order in which metrics first appear in the agent's rollouts by task and rollout, from 0
--   run_position   the same over the rollouts of all agents
--   count          rollouts of the agent that have the metric
--   num_rollouts   rollouts of the agent
--   mean           sum / count, summed pairwise in the order of task and rollout
--   max, min       largest and smallest value
--   median         middle value, or the mean of the two middle ones
--   std            sqrt(sum((mean - value)^2) / (count - 1)); null for one value, but 0 where that is so
--                  for every metric of the agent, and all its rollouts have this one
--   integer_max, integer_min   max and min exactly, where every rollout of the agent has the metric and
--                  holds nothing but integers and booleans
--
-- Rows pass in the order of tasks and rollouts twice, once for the mean and once for the deviations
-- from it; of their values only the median holds all.

WITH sizes AS (
    SELECT agent_name, count(*) AS num_rollouts
    FROM rollouts
    GROUP BY agent_name
),
placed AS (
    SELECT
        agent_name,
        task_index,
        rollout_index,
        CAST(row_number() OVER (PARTITION BY agent_name ORDER BY task_index, rollout_index) - 1 AS BIGINT) AS place,
        metrics,
        integer_metrics
    FROM rollouts
),
entries AS (
    SELECT
        placed.agent_name,
        placed.task_index,
        placed.rollout_index,
        sizes.num_rollouts,
        placed.place,
        unnest(range(cardinality(placed.metrics))) AS ordinal,
        unnest(map_keys(placed.metrics)) AS metric,
        unnest(map_values(placed.metrics)) AS value,
        unnest(map_values(placed.integer_metrics)) AS integer_value
    FROM sizes
    JOIN placed USING (agent_name)
),
means AS (
    SELECT
        agent_name,
        metric,
        count(value) AS count,
        pairwise_sum(value, place, num_rollouts) / count(value) AS mean
    FROM entries
    GROUP BY agent_name, metric
),
statistics AS (
    SELECT
        entries.agent_name,
        entries.metric,
        entries.num_rollouts,
        means.count,
        means.mean,
        max(value) AS max,
        min(value) AS min,
        0.0 + median(value) AS median,
        CASE WHEN means.count > 1 THEN nanvl(sqrt(
            pairwise_sum((mean - value) * (mean - value), place, num_rollouts) / (means.count - 1)
        ), NULL) END AS std,
        count(integer_value) AS integers,
        max(integer_value) AS integer_max,
        min(integer_value) AS integer_min,
        -- Far more metrics than a rollout can have.
        min(place * 1000000 + ordinal) AS first,
        first_value(task_index ORDER BY place) AS first_task,
        first_value(rollout_index ORDER BY place) AS first_rollout,
        first_value(ordinal ORDER BY place) AS first_ordinal
    FROM means
    JOIN entries USING (agent_name, metric)
    GROUP BY entries.agent_name, entries.metric, entries.num_rollouts, means.count, means.mean
),
ranked AS (
    SELECT
        *,
        row_number() OVER (ORDER BY first_task, first_rollout, agent_name, first_ordinal) AS run_first
    FROM statistics
),
ordered AS (
    SELECT *, min(run_first) OVER (PARTITION BY metric) AS metric_first
    FROM ranked
)
SELECT
    agent_name,
    metric,
    CAST(row_number() OVER (PARTITION BY agent_name ORDER BY first) - 1 AS BIGINT) AS position,
    CAST(dense_rank() OVER (ORDER BY metric_first) - 1 AS BIGINT) AS run_position,
    count,
    num_rollouts,
    mean,
    max,
    min,
    median,
    CASE
        WHEN max(std) OVER (PARTITION BY agent_name) IS NULL AND count = num_rollouts THEN 0.0
        ELSE std
    END AS std,
    CASE WHEN integers = num_rollouts THEN integer_max END AS integer_max,
    CASE WHEN integers = num_rollouts THEN integer_min END AS integer_min
FROM ordered
ORDER BY agent_name, position
