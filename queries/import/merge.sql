-- The places of the lines of all files, in the order of the merge.
--
-- Columns:
--   source_number   number of the file, from 0
--   source_offset   bytes before the line
--   source_length   bytes of the line

SELECT source_number, source_offset, source_length
FROM imported_rollouts
-- Leaves out rows that come from no file.
WHERE source_length > 0
ORDER BY task_index, rollout_index, source_row
