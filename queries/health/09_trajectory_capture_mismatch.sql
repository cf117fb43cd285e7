-- A turn or an invocation refers to a call that was not captured, or that was captured several times.
--
-- A gap that the producer reports counts unless a reference shows the same.
--
-- Reads: unbound, gaps, records.
WITH contradictions AS (
    SELECT
        record,
        position,
        code,
        invocation_id,
        CASE code
            WHEN 'model_call_reference_unmatched' THEN 'missing_captured_call'
            WHEN 'model_call_reference_ambiguous' THEN 'duplicated_captured_call'
            ELSE 'conflicting_call_ownership'
        END AS kind,
        split_part(coalesce(nullif(detail, ''), 'unknown'), ':', -1) AS call_id
    FROM gaps
    WHERE is_observed AND code IN (
        'model_call_reference_unmatched', 'model_call_reference_ambiguous', 'model_call_reference_conflict'
    )
),
shown AS (
    SELECT
        record,
        call_id,
        CASE matches WHEN 0 THEN 'missing_captured_call' ELSE 'duplicated_captured_call' END AS kind,
        min(position) AS position,
        first_value(matches ORDER BY position) AS matches
    FROM unbound
    GROUP BY record, call_id, CASE matches WHEN 0 THEN 'missing_captured_call' ELSE 'duplicated_captured_call' END
)
-- Missing calls come first, then duplicated ones, then the gaps.
SELECT
    record,
    position + CASE matches WHEN 0 THEN 0 ELSE 1000000000 END AS position,
    to_json(named_struct('call_id', call_id)) AS locator,
    CASE matches
        WHEN 0 THEN to_json(named_struct('kind', kind))
        ELSE to_json(named_struct('kind', kind, 'count', matches))
    END AS detail
FROM shown
UNION ALL
SELECT
    record,
    position + 2000000000,
    to_json(named_struct('call_id', call_id)),
    to_json(named_struct('kind', kind, 'observation_gap', code, 'invocation_id', invocation_id))
FROM contradictions
WHERE NOT EXISTS (
    SELECT 1
    FROM shown
    WHERE shown.record = contradictions.record
        AND shown.kind = contradictions.kind
        AND shown.call_id = contradictions.call_id
)
UNION ALL
SELECT record, 0, NULL, NULL
FROM records
WHERE NOT calls_observed
    OR "references" = 0 AND NOT EXISTS (SELECT 1 FROM contradictions WHERE contradictions.record = records.record)
