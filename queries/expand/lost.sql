-- The next attempt of each rollout that is neither done nor failed but has attempts on record.
--
-- Reads: attempts, done.
-- Columns: task_index, rollout_index, attempt (number of the next one).
SELECT
    attempts.task_index,
    attempts.rollout_index,
    max(attempts.attempt) + 1 AS attempt
FROM attempts
LEFT ANTI JOIN done
    ON attempts.task_index = done.task_index
    AND attempts.rollout_index = done.rollout_index
GROUP BY attempts.task_index, attempts.rollout_index
