-- The next attempt of each rollout that is neither done nor failed but has attempts on record.
--
-- Reads: attempts, done.
-- Columns: task_index, rollout_index, attempt (number of the next one).
SELECT
    attempts.task_index,
    attempts.rollout_index,
    max(attempts.attempt) + 1 AS attempt
FROM done
RIGHT ANTI JOIN attempts
    ON done.task_index = attempts.task_index
    AND done.block = attempts.rollout_index >> 6
    AND (done.bits >> (attempts.rollout_index & 63)) & 1 = 1
GROUP BY attempts.task_index, attempts.rollout_index
