-- A task has at least two rollouts with a verdict, and all of them are unhealthy.
--
-- Scope: tasks
-- Reads: repeats.
SELECT
    task,
    CASE WHEN known >= 2 THEN to_json(named_struct('computable_repeats', known)) END AS detail
FROM (
    SELECT
        task,
        sum(CASE WHEN verdict <> 'unobserved' THEN 1 ELSE 0 END) AS known,
        sum(CASE WHEN verdict = 'unhealthy' THEN 1 ELSE 0 END) AS unhealthy
    FROM repeats
    GROUP BY task
) AS tasks
WHERE known < 2 OR unhealthy = known
