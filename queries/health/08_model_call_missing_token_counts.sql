-- A call lacks token counts.
--
-- Reads: calls, records.
SELECT
    record,
    owned AS position,
    to_json(named_struct('call_id', coalesce(call_id, CAST(owned AS VARCHAR)))) AS locator,
    to_json(named_struct(
        'missing',
        CASE
            WHEN output_tokens IS NOT NULL THEN ['prompt_tokens']
            WHEN input_tokens IS NOT NULL THEN ['completion_tokens']
            ELSE ['prompt_tokens', 'completion_tokens']
        END
    )) AS detail
FROM calls
WHERE owned IS NOT NULL AND (input_tokens IS NULL OR output_tokens IS NULL)
UNION ALL
SELECT record, 0, NULL, NULL
FROM records
WHERE owned_calls = 0
