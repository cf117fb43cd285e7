-- The number of tasks that two agents, of one run or of two, have in common.
--
-- Reads: base_keys, candidate_keys.
--
-- Parameters:
--   pair = 0               number of the pair
--   base_agent = ''        agent of the base
--   candidate_agent = ''   agent of the candidate
--
-- Columns:
--   pair                    number of the pair
--   in_common               tasks that both have
--   only_in_base            tasks that the candidate does not have
--   only_in_candidate       tasks that the base does not have
--   base_pooled             tasks of the base with the key of an earlier task, with which they are pooled
--   candidate_pooled        tasks of the candidate with the key of an earlier task, with which they are pooled
--   base_without_key        tasks of the base that have no key
--   candidate_without_key   tasks of the candidate that have no key

WITH base AS (
    SELECT task_key, count(*) AS num_tasks
    FROM base_keys
    WHERE agent_name = $base_agent
    GROUP BY task_key
),
candidate AS (
    SELECT task_key, count(*) AS num_tasks
    FROM candidate_keys
    WHERE agent_name = $candidate_agent
    GROUP BY task_key
)
SELECT
    CAST($pair AS BIGINT) AS pair,
    count(*) FILTER (WHERE base.task_key IS NOT NULL AND candidate.task_key IS NOT NULL) AS in_common,
    count(*) FILTER (WHERE base.task_key IS NOT NULL AND candidate.task_key IS NULL) AS only_in_base,
    count(*) FILTER (WHERE base.task_key IS NULL AND candidate.task_key IS NOT NULL) AS only_in_candidate,
    coalesce(sum(base.num_tasks - 1) FILTER (WHERE base.task_key IS NOT NULL), 0) AS base_pooled,
    coalesce(sum(candidate.num_tasks - 1) FILTER (WHERE candidate.task_key IS NOT NULL), 0) AS candidate_pooled,
    coalesce(sum(base.num_tasks) FILTER (WHERE base.task_key IS NULL), 0) AS base_without_key,
    coalesce(sum(candidate.num_tasks) FILTER (WHERE candidate.task_key IS NULL), 0) AS candidate_without_key
FROM base
FULL JOIN candidate ON candidate.task_key = base.task_key
