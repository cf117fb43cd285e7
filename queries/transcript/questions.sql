-- The tasks of a run with their questions, the one with the lowest mean reward first.
--
-- Reads: the rows of `tasks.sql`, the table tasks, and the function question(request).
-- Columns: task_index, agent_name, num_rollouts, num_done, num_failed, mean_reward (null if no rollout has one that
-- counts), question (the beginning of the prompt).
SELECT
    counts.task_index,
    counts.agent_name,
    counts.planned AS num_rollouts,
    counts.done AS num_done,
    counts.failed AS num_failed,
    counts.mean AS mean_reward,
    asked.question
FROM ($counts) AS counts
JOIN (
    SELECT task_index, agent_name, min(question(request)) AS question
    FROM tasks
    GROUP BY task_index, agent_name
) AS asked
    ON counts.task_index = asked.task_index AND counts.agent_name = asked.agent_name
ORDER BY counts.mean ASC NULLS LAST, counts.task_index
