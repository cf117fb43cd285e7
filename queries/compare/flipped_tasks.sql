-- The tasks whose result flipped, as written to a file.
--
-- Reads: flips.
--
-- Columns:
--   metric                 name of the metric
--   candidate              the candidate
--   agent                  agent of the candidate
--   task_key               key of the task
--   base_task_index        the task in the base
--   candidate_task_index   the task in the candidate
--   base_mean              mean of its rollouts in the base
--   candidate_mean         mean of its rollouts in the candidate
--   base_count             number of its rollouts in the base
--   candidate_count        number of its rollouts in the candidate
--   difference             candidate_mean - base_mean
--   flip                   for a binary metric 'gained' or 'lost': a task is solved if its mean is 0.5 or more;
--                          for others 'improved' or 'regressed': the mean is larger or smaller

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
