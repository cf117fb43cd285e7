-- The tasks whose result flipped, as they are written to a file.
--
-- Reads: flips.
--
-- Columns:
--   metric                 name of the metric
--   candidate              the candidate
--   agent                  its agent
--   task_key               what the task asks
--   base_task_index        the task in the base
--   candidate_task_index   the task in the candidate
--   base_mean              mean of its rollouts in the base
--   candidate_mean         the same of the candidate
--   base_count             number of them
--   candidate_count        the same of the candidate
--   difference             candidate_mean - base_mean
--   flip                   of a binary metric 'gained' or 'lost', where a task with a mean of 0.5 or more is solved;
--                          of others 'improved' or 'regressed', for a larger and a smaller mean

SELECT
    metric,
    candidate,
    agent,
    task_key,
    base_task_index,
    candidate_task_index,
    base_mean,
    candidate_mean,
    base_count,
    candidate_count,
    difference,
    flip
FROM flips
ORDER BY metric <> 'reward', metric, pair, task_key
