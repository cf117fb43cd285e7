-- There is no turn in which the model said something, called a tool, or was called.
--
-- Reads: records.
SELECT
    record,
    CASE WHEN turns_observed THEN to_json(named_struct('reason', 'no agent turn with model activity')) END AS detail
FROM records
WHERE NOT turns_observed OR active_turns = 0
