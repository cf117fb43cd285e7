-- A check failed on a record.
--
-- Rules report that themselves, in their column `error`. This one lists only the records that no rule can read.
--
-- Reads: records.
SELECT record, NULL AS detail
FROM records
WHERE unreadable IS NOT NULL
