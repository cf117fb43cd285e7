-- The last call of a model failed. The reward may then reflect the failure instead of the agent.
--
-- Reads: chains, records.
SELECT
    record,
    position,
    to_json(named_struct('call_id', last_call_id)) AS locator,
    to_json(named_struct(
        'model_ref', model_ref,
        'status', last_status_code,
        'error_category', last_error_category,
        'observed_calls', num_calls,
        'successful_calls', successful_calls
    )) AS detail
FROM chains
WHERE ended_on_failure AND is_observed
UNION ALL
SELECT record, 0, NULL, NULL
FROM records
WHERE NOT calls_observed OR num_calls = 0
