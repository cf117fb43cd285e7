-- The common tasks of two agents, each with its mean on both sides and their difference.
--
-- Reads: base_keys, candidate_keys, base_means, candidate_means.
--
-- Parameters:
--   pair = 0               number of the pair
--   base_agent = ''        agent of the base
--   candidate_agent = ''   agent of the candidate
--
-- Columns:
--   pair                   number of the pair
--   metric                 name of the metric
--   task_key               key of the task
--   base_task_index        the task in the base; null if the base has no such score
--   candidate_task_index   the task in the candidate; null if the candidate has no such score
--   base_count             rollouts of the base that have the metric
--   candidate_count        rollouts of the candidate that have the metric
--   base_mean              mean of the base's rollouts
--   candidate_mean         mean of the candidate's rollouts
--   difference             candidate_mean - base_mean, 0 if they differ only by rounding; null if a side has no score
--   is_binary              whether all scores of both sides are 0 or 1

WITH common AS (
    SELECT task_key FROM base_keys WHERE agent_name = $base_agent AND task_key IS NOT NULL
    INTERSECT
    SELECT task_key FROM candidate_keys WHERE agent_name = $candidate_agent
),
base AS (
    SELECT base_means.*
    FROM base_means
    LEFT SEMI JOIN common ON common.task_key = base_means.task_key
    WHERE base_means.agent_name = $base_agent
),
candidate AS (
    SELECT candidate_means.*
    FROM candidate_means
    LEFT SEMI JOIN common ON common.task_key = candidate_means.task_key
    WHERE candidate_means.agent_name = $candidate_agent
)
SELECT
    CAST($pair AS BIGINT) AS pair,
    coalesce(base.metric, candidate.metric) AS metric,
    coalesce(base.task_key, candidate.task_key) AS task_key,
    base.task_index AS base_task_index,
    candidate.task_index AS candidate_task_index,
    base.count AS base_count,
    candidate.count AS candidate_count,
    base.mean AS base_mean,
    candidate.mean AS candidate_mean,
    CASE
        WHEN abs(candidate.mean - base.mean) < 1e-12 * greatest(abs(candidate.mean), abs(base.mean)) THEN 0.0
        ELSE candidate.mean - base.mean
    END AS difference,
    base.is_binary AND candidate.is_binary AS is_binary
FROM base
FULL JOIN candidate ON candidate.metric = base.metric AND candidate.task_key = base.task_key
ORDER BY metric, task_key
