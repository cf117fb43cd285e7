-- The task names of each agent, and the first line that has each.
--
-- Reads: tasks.
-- Columns: agent_name, task_name (null where a row names none), source_file, source_line.
SELECT
    agent_name,
    arrow_cast(json_as_text(request, 'task_name'), 'Utf8View') AS task_name,
    first_value(source_file ORDER BY source_file, source_line) AS source_file,
    first_value(source_line ORDER BY source_file, source_line) AS source_line
FROM tasks
GROUP BY agent_name, json_as_text(request, 'task_name')
ORDER BY agent_name, source_file, source_line
