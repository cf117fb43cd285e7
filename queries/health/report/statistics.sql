-- Totals over the calls of all records.
--
-- Reads: records, calls, chains.
--
-- Columns: one row of sums.
SELECT *
FROM (
    SELECT
        coalesce(sum(CASE WHEN num_calls > 0 THEN 1 ELSE 0 END), 0) AS captures,
        coalesce(sum(replayed_calls), 0) AS replayed_calls,
        coalesce(sum(CASE WHEN replayed_calls > 0 THEN 1 ELSE 0 END), 0) AS replaying_rollouts,
        coalesce(sum(input_tokens), 0) AS input_tokens,
        coalesce(sum(output_tokens), 0) AS output_tokens
    FROM records
) AS of_records
CROSS JOIN (
    SELECT
        coalesce(sum(CASE WHEN failed THEN 1 ELSE 0 END), 0) AS failed_calls,
        count(DISTINCT CASE WHEN failed THEN record END) AS failing_rollouts,
        coalesce(sum(input_tokens), 0) AS captured_input_tokens,
        coalesce(sum(output_tokens), 0) AS captured_output_tokens
    FROM calls
) AS of_calls
CROSS JOIN (
    SELECT count(DISTINCT record) AS ended_on_failure
    FROM chains
    WHERE ended_on_failure
) AS of_chains
