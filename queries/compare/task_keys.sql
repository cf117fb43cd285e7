-- A key for each task that is the same in every run.
--
-- Reads: tasks.
--
-- Parameters:
--   task_key = ''   path of a request field that identifies the task, such as 'id' or 'source.id'; '' takes a digest of
--                   all that the task asks (task_content)
--
-- Columns:
--   agent_name   the agent
--   task_index   the task
--   task_key     its key; null if it has no such field

SELECT agent_name, task_index, first_value(task_key ORDER BY first_rollout_index) AS task_key
FROM (
    SELECT
        agent_name,
        task_index,
        first_rollout_index,
        CASE WHEN $task_key = '' THEN task_content(request) ELSE json_text_at(request, $task_key) END AS task_key
    FROM tasks
) AS lines
GROUP BY agent_name, task_index
ORDER BY agent_name, task_index
