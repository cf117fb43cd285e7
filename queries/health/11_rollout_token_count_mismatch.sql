-- The token counts of the response differ from the sums over the calls of its turns.
--
-- Reads: records.
SELECT
    record,
    CASE WHEN is_known THEN to_json(named_struct(
        'transcript_prompt', input_tokens,
        'transcript_completion', output_tokens,
        'capture_prompt', turn_input_tokens,
        'capture_completion', turn_output_tokens
    )) END AS detail
FROM (
    SELECT
        *,
        turn_calls > 0
            AND turns_bound
            AND scope_complete
            AND uncounted_turn_calls = 0
            AND input_tokens IS NOT NULL
            AND output_tokens IS NOT NULL AS is_known
    FROM records
) AS counts
WHERE NOT is_known OR input_tokens <> turn_input_tokens OR output_tokens <> turn_output_tokens
