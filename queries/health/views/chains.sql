-- The calls of a record as one chain per model.
--
-- Each model has its own chain: a judge's call does not repair a failed call of the policy. Without times, the last
-- call is unknown; such a chain ended on a failure only if all its calls failed.
--
-- Reads: calls.
SELECT
    record,
    model_ref,
    min(position) AS position,
    bool_and(is_observed) AS is_observed,
    count(*) AS num_calls,
    sum(CASE WHEN successful THEN 1 ELSE 0 END) AS successful_calls,
    bool_and(failed)
        OR NOT bool_or(started_at IS NULL)
        AND first_value(failed ORDER BY coalesce(started_at, 0) DESC, position DESC) AS ended_on_failure,
    first_value(coalesce(call_id, CAST(position AS VARCHAR)) ORDER BY coalesce(started_at, 0) DESC, position DESC)
        AS last_call_id,
    first_value(status_code ORDER BY coalesce(started_at, 0) DESC, position DESC) AS last_status_code,
    first_value(error_category ORDER BY coalesce(started_at, 0) DESC, position DESC) AS last_error_category
FROM calls
GROUP BY record, model_ref
