-- Mean, maximum, minimum, median and standard deviation of every metric, per agent.
--
-- A metric is a number or boolean of the answer. Rollouts that lack a metric are left out of its statistics; count says
-- how many have it.
--
-- Parameters: none.
--
-- Columns:
--   agent_name     the agent
--   metric         name of the metric
--   position       order in which metrics first appear in the agent's rollouts by task and rollout, from 0
--   run_position   position over the rollouts of all agents
--   count          rollouts of the agent that have the metric
--   num_rollouts   rollouts of the agent
--   mean           sum / count, summed pairwise in the order of task and rollout
--   max, min       largest and smallest value
--   median         middle value, or the mean of the two middle ones
--   std            sqrt(sum((mean - value)^2) / (count - 1)); null for one value, but 0 if every metric of the agent has
--                  one value and all its rollouts have this metric
--   stderr_iid     standard error of the mean of independent rollouts, std / sqrt(count); with several rollouts a task,
--                  see stderr of the family spread
--   integer_max, integer_min   exact max and min, if every rollout of the agent has the metric and has only
--                  integers and booleans as metrics
--   planned, done, failed, pending   rollouts of the agent: how much of the sweep the numbers cover

WITH ranked AS (
    SELECT
        *,
        statistics['count'] AS count,
        statistics['std'] AS std,
        row_number() OVER (PARTITION BY agent_name ORDER BY first_task, first_rollout, first_ordinal, metric) AS first,
        row_number() OVER (ORDER BY first_task, first_rollout, agent_name, first_ordinal, metric) AS run_first
    FROM totals
),
ordered AS (
    SELECT
        *,
        min(run_first) OVER (PARTITION BY metric) AS metric_first,
        CASE
            WHEN max(std) OVER (PARTITION BY agent_name) IS NULL AND count = num_rollouts THEN 0.0
            ELSE std
        END AS known_std
    FROM ranked
)
SELECT
    ordered.agent_name,
    metric,
    CAST(first - 1 AS BIGINT) AS position,
    CAST(dense_rank() OVER (ORDER BY metric_first) - 1 AS BIGINT) AS run_position,
    count,
    num_rollouts,
    statistics['mean'] AS mean,
    statistics['max'] AS max,
    statistics['min'] AS min,
    statistics['median'] AS median,
    known_std AS std,
    known_std / sqrt(count) AS stderr_iid,
    CASE WHEN integers = num_rollouts THEN integer_max END AS integer_max,
    CASE WHEN integers = num_rollouts THEN integer_min END AS integer_min,
    coverage.planned,
    coverage.done,
    coverage.failed,
    coverage.pending
FROM ordered
LEFT JOIN coverage ON coverage.agent_name = ordered.agent_name
ORDER BY agent_name, position
