-- A call ended at a token limit without content.
--
-- Reads: calls, records.
WITH limited AS (
    SELECT
        *,
        bool_and(has_response) OVER (PARTITION BY record) AS is_known,
        first_value(unreadable) IGNORE NULLS OVER (
            PARTITION BY record ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING
        ) AS first_error
    FROM calls
    WHERE owned IS NOT NULL AND finish_reason IN ('length', 'max_output_tokens', 'max_tokens')
)
SELECT
    record,
    owned AS position,
    to_json(named_struct('call_id', coalesce(call_id, CAST(owned AS VARCHAR)))) AS locator,
    CASE WHEN is_known AND first_error IS NULL THEN to_json(named_struct('finish_reason', finish_reason)) END AS detail,
    CASE WHEN is_known THEN first_error END AS error
FROM limited
WHERE NOT is_known OR first_error IS NOT NULL OR NOT has_content
UNION ALL
SELECT record, 0, NULL, NULL, NULL
FROM records
WHERE owned_calls = 0
