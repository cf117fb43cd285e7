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

WITH placed AS (
    SELECT
        agent_name,
        task_index,
        rollout_index,
        CAST(row_number() OVER (PARTITION BY agent_name ORDER BY task_index, rollout_index) - 1 AS BIGINT) AS place,
        CAST(row_number() OVER (ORDER BY task_index, rollout_index, agent_name) - 1 AS BIGINT) AS run_place
    FROM rollouts
),
sizes AS (
    SELECT agent_name, count(*) AS num_rollouts
    FROM rollouts
    GROUP BY agent_name
),
entries AS (
    SELECT
        placed.agent_name,
        sizes.num_rollouts,
        placed.place,
        placed.run_place,
        unnest(range(cardinality(rollouts.metrics))) AS ordinal,
        unnest(map_keys(rollouts.metrics)) AS metric,
        unnest(map_values(rollouts.metrics)) AS value,
        unnest(map_values(rollouts.integer_metrics)) AS integer_value
    FROM placed
    JOIN rollouts USING (agent_name, task_index, rollout_index)
    JOIN sizes USING (agent_name)
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
        min(run_place * 1000000 + ordinal) AS run_first
    FROM entries
    JOIN means USING (agent_name, metric)
    GROUP BY entries.agent_name, entries.metric, entries.num_rollouts, means.count, means.mean
),
ordered AS (
    SELECT *, min(run_first) OVER (PARTITION BY metric) AS metric_first
    FROM statistics
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
