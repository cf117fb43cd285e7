-- A failed call belongs to a turn or an invocation.
--
-- Reads: calls, records.
SELECT
    record,
    owned AS position,
    to_json(named_struct('call_id', coalesce(call_id, CAST(owned AS VARCHAR)))) AS locator,
    to_json(named_struct('status', status_code, 'error_category', error_category, 'terminal', is_last)) AS detail
FROM calls
WHERE owned IS NOT NULL AND failed
UNION ALL
SELECT record, 0, NULL, NULL
FROM records
WHERE owned_calls = 0
