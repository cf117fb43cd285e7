-- The calls of all rollouts of a task were observed, and none of them succeeded.
--
-- Scope: tasks
-- Reads: repeats.
SELECT
    task,
    CASE WHEN is_known THEN to_json(named_struct('repeats', num_repeats)) END AS detail
FROM (
    SELECT
        task,
        count(*) AS num_repeats,
        bool_and(calls_known) AS is_known,
        max(successful_calls) AS successful_calls
    FROM repeats
    GROUP BY task
) AS tasks
WHERE NOT is_known OR successful_calls = 0
