-- A line is not a JSON object, or its trajectory does not have the form of schema 1.0.
--
-- Reads: records.
SELECT
    record,
    to_json(named_struct('source_file', source_file, 'line', source_line)) AS locator,
    to_json(named_struct('reason', 'rollout record is unreadable', 'error', unreadable)) AS detail
FROM records
WHERE unreadable IS NOT NULL
UNION ALL
SELECT
    record,
    NULL,
    to_json(named_struct('reason', 'canonical trajectory is unreadable', 'error', bad_trajectory))
FROM records
WHERE bad_trajectory IS NOT NULL
