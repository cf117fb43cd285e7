-- The answers of the accepted rollouts, one row for each task.
--
-- Parameters:
--   answer_key = ''   path of the answer in the agent's result, such as extracted_answer or a.b[0]; without a path there
--                     are no answers
--
-- Columns:
--   agent_name   the agent
--   task_index   the task
--   answers      the answers of the task's rollouts by rollout_index; null where a rollout gave none
--   no_answer    for each of the task's rollouts 1 if it gave no answer, else 0

WITH given AS (
    SELECT agent_name, task_index, rollout_index, answer_text(json_at(result, $answer_key)) AS answer
    FROM accepted
    WHERE $answer_key <> ''
    UNION ALL
    SELECT agent_name, task_index, rollout_index, NULL AS answer
    FROM absent
    WHERE $answer_key <> ''
)
SELECT
    agent_name,
    task_index,
    array_agg(answer ORDER BY rollout_index) AS answers,
    array_agg(CASE WHEN answer IS NULL THEN 1.0 ELSE 0.0 END ORDER BY rollout_index) AS no_answer
FROM given
GROUP BY agent_name, task_index
