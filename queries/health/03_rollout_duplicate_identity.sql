-- Several records claim to be the same stage of the same rollout.
--
-- Scope: records
-- Reads: records.
SELECT
    record,
    CASE WHEN unreadable IS NULL THEN to_json(named_struct('duplicate_count', copies)) END AS detail
FROM (
    SELECT record, unreadable, count(*) OVER (PARTITION BY stage, task, rollout) AS copies
    FROM records
) AS claims
WHERE copies > 1 OR unreadable IS NOT NULL
