-- The last attempt of each rollout that has no answer and whose last attempt failed.
--
-- Reads: attempts, rollouts.
-- Columns: those of attempts.
SELECT last_attempts.* EXCEPT (num_later)
FROM (
    SELECT
        *,
        row_number() OVER (PARTITION BY task_index, rollout_index ORDER BY attempt DESC) AS num_later
    FROM attempts
) AS last_attempts
LEFT ANTI JOIN rollouts
    ON last_attempts.task_index = rollouts.task_index
    AND last_attempts.rollout_index = rollouts.rollout_index
WHERE last_attempts.num_later = 1
    AND last_attempts.outcome NOT IN ('ok', 'interrupted', 'superseded')
