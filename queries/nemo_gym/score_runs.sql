-- The mean of named scores over the first rollouts of all tasks, over the second ones, and so on, in percent.
--
-- Reads: named_scores.
--
-- Columns:
--   agent_name   the agent
--   name         name of the score
--   run          place among the runs that have the score, from 1
--   mean         100 * the mean over the tasks that have the score there
--   std          standard deviation of the means of the runs up to this one; null for the first
--   stderr       std / sqrt(run)

WITH runs AS (
    SELECT agent_name, name, summary_each(rollout_scores ORDER BY task_index) AS runs
    FROM named_scores
    GROUP BY agent_name, name
),
listed AS (
    SELECT
        agent_name,
        name,
        unnest(range(0, CAST(cardinality(runs) AS BIGINT))) AS place,
        unnest(runs) AS run
    FROM runs
),
kept AS (
    SELECT agent_name, name, array_agg(100.0 * run['sum'] / run['count'] ORDER BY place) AS means
    FROM listed
    WHERE run['count'] > 0
    GROUP BY agent_name, name
),
spread AS (
    SELECT
        agent_name,
        name,
        unnest(range(1, CAST(cardinality(means) AS BIGINT) + 1)) AS run,
        unnest(means) AS mean,
        unnest(std_of_each_first_k(means, CAST(cardinality(means) AS BIGINT))) AS std
    FROM kept
)
SELECT agent_name, name, run, mean, std, std / sqrt(run) AS stderr
FROM spread
ORDER BY agent_name, name, run
