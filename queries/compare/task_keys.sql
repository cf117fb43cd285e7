-- What each task asks, as a key that is the same wherever the task stands.
--
-- Reads: tasks.
--
-- Parameters:
--   task_key = ''   path of a field of the request that tells tasks apart, such as 'id' or 'source.id'; with '' it is
--                   all that the task asks (task_content)
--
-- Columns:
--   agent_name   the agent
--   task_index   the task
--   task_key     its key; null where it has no such field

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
