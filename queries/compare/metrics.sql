-- The metrics of either side, and the number of common tasks that have them.
--
-- Reads: differences.
--
-- Columns:
--   pair              number of the pair
--   metric            name of the metric
--   num_tasks         tasks with a score on both sides
--   base_tasks        tasks with a score in the base
--   candidate_tasks   tasks with a score in the candidate

SELECT
    pair,
    metric,
    count(difference) AS num_tasks,
    count(base_mean) AS base_tasks,
    count(candidate_mean) AS candidate_tasks
FROM differences
GROUP BY pair, metric
ORDER BY metric <> 'reward', metric, pair
