-- The tasks whose result flipped.
--
-- Reads: chosen (differences of the metrics that are compared), tests, pairs.
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
--   pair                   number of the pair

SELECT *
FROM (
    SELECT
        chosen.metric,
        pairs.candidate,
        pairs.candidate_agent AS agent,
        chosen.task_key,
        chosen.base_task_index,
        chosen.candidate_task_index,
        chosen.base_mean,
        chosen.candidate_mean,
        chosen.base_count,
        chosen.candidate_count,
        chosen.difference,
        CASE
            WHEN tests.is_binary AND chosen.base_mean < 0.5 AND chosen.candidate_mean >= 0.5 THEN 'gained'
            WHEN tests.is_binary AND chosen.base_mean >= 0.5 AND chosen.candidate_mean < 0.5 THEN 'lost'
            WHEN NOT tests.is_binary AND chosen.difference > 0.0 THEN 'improved'
            WHEN NOT tests.is_binary AND chosen.difference < 0.0 THEN 'regressed'
        END AS flip,
        chosen.pair
    FROM chosen
    JOIN tests ON tests.pair = chosen.pair AND tests.metric = chosen.metric
    JOIN pairs ON pairs.pair = chosen.pair
    WHERE chosen.difference IS NOT NULL
) AS compared
WHERE flip IS NOT NULL
