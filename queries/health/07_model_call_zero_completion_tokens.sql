-- A call generated no tokens.
--
-- Reads: calls, records.
SELECT
    record,
    owned AS position,
    to_json(named_struct('call_id', coalesce(call_id, CAST(owned AS VARCHAR)))) AS locator,
    to_json(named_struct('completion_tokens', output_tokens)) AS detail
FROM calls
WHERE owned IS NOT NULL AND output_tokens = 0
UNION ALL
SELECT record, 0, NULL, NULL
FROM records
WHERE owned_calls = 0
