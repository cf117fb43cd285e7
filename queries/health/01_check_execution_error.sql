-- A check failed on a record.
--
-- A rule reports its own failures in its column `error`. This rule lists only the records that no rule can read.
--
-- Reads: records.
SELECT record, NULL AS detail
FROM records
WHERE unreadable IS NOT NULL
