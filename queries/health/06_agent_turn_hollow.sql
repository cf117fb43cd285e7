-- A turn has neither text nor a tool call.
--
-- Reads: turns, records.
SELECT
    record,
    position,
    to_json(named_struct('turn', turn)) AS locator,
    to_json(named_struct('reason', 'agent turn has no message or tool calls')) AS detail
FROM turns
WHERE NOT has_text AND NOT has_tool_call
    AND is_observed
UNION ALL
SELECT record, 0, NULL, NULL
FROM records
WHERE NOT turns_observed
