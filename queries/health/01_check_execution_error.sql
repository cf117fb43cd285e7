-- Whether a rule broke down over a record.
--
-- Rules themselves say so, in their column `error`. Here are only the records that no rule can look at.
--
-- Reads: records.
SELECT record, NULL AS detail
FROM records
WHERE unreadable IS NOT NULL
