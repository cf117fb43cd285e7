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

WITH chosen AS (
    SELECT
        CASE WHEN $split_agents THEN agent_name ELSE '' END AS agent_name,
        task_index,
        rollout_index,
        metrics,
        integer_metrics
    FROM rollouts
),
placed AS (
    SELECT
        agent_name,
        task_index,
        rollout_index,
        CAST(row_number() OVER (PARTITION BY agent_name, task_index ORDER BY rollout_index) - 1 AS BIGINT) AS place
    FROM chosen
),
sizes AS (
    SELECT agent_name, task_index, count(*) AS num_rollouts
    FROM chosen
    GROUP BY agent_name, task_index
),
entries AS (
    SELECT
        placed.agent_name,
        placed.task_index,
        sizes.num_rollouts,
        placed.place,
        unnest(range(cardinality(chosen.metrics))) AS ordinal,
        unnest(map_keys(chosen.metrics)) AS metric,
        unnest(map_values(chosen.metrics)) AS value,
        unnest(map_values(chosen.integer_metrics)) AS integer_value
    FROM placed
    JOIN chosen USING (agent_name, task_index, rollout_index)
    JOIN sizes USING (agent_name, task_index)
),
means AS (
    SELECT
        agent_name,
        task_index,
        metric,
        count(value) AS count,
        pairwise_sum(value, place, num_rollouts) / count(value) AS mean
    FROM entries
    GROUP BY agent_name, task_index, metric
),
statistics AS (
    SELECT
        entries.agent_name,
        entries.task_index,
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
        min(place * 1000000 + ordinal) AS first
    FROM entries
    JOIN means USING (agent_name, task_index, metric)
    GROUP BY
        entries.agent_name,
        entries.task_index,
        entries.metric,
        entries.num_rollouts,
        means.count,
        means.mean
)
SELECT
    agent_name,
    task_index,
    metric,
    CAST(row_number() OVER (PARTITION BY agent_name, task_index ORDER BY first) - 1 AS BIGINT) AS position,
    count,
    num_rollouts,
    mean,
    max,
    min,
    median,
    CASE
        WHEN max(std) OVER (PARTITION BY agent_name, task_index) IS NULL AND count = num_rollouts THEN 0.0
        ELSE std
    END AS std,
    CASE WHEN integers = count THEN integer_max END AS integer_max,
    CASE WHEN integers = count THEN integer_min END AS integer_min
FROM statistics
ORDER BY agent_name, task_index, position
