-- Where the lines of all files stand, in the order in which they are merged.
--
-- Columns:
--   source_number   which of the files, from 0
--   source_offset   bytes before the line
--   source_length   bytes of the line

SELECT source_number, source_offset, source_length
FROM imported_rollouts
-- What stands in no file is not merged.
WHERE source_length > 0
ORDER BY task_index, rollout_index, source_row
