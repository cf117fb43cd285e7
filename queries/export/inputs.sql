-- The input lines of a run, in their order.
--
-- Reads: tasks.
-- Columns: task_index, first_rollout_index, num_repeats, request.
SELECT task_index, first_rollout_index, num_repeats, request
FROM tasks
