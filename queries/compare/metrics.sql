-- The metrics of either side, and the number of common tasks that have them.
--
-- Reads: differences, pairs.
--
-- Columns:
--   metric            name of the metric
--   candidate         the candidate
--   base_agent        agent of the base
--   candidate_agent   agent of the candidate
--   num_tasks         tasks with a score on both sides
--   base_tasks        tasks with a score in the base
--   candidate_tasks   tasks with a score in the candidate

WITH counted AS (
    SELECT
        pair,
        metric,
        count(difference) AS num_tasks,
        count(base_mean) AS base_tasks,
        count(candidate_mean) AS candidate_tasks
    FROM differences
    GROUP BY pair, metric
)
SELECT
    metric,
    pairs.candidate,
    pairs.base_agent,
    pairs.candidate_agent,
    num_tasks,
    base_tasks,
    candidate_tasks
FROM counted
JOIN pairs ON pairs.pair = counted.pair
ORDER BY metric <> 'reward', metric, counted.pair
