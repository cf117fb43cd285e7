-- What the accepted rollouts of every task answered.
--
-- Parameters:
--   answer_key = ''   path of the answer within what the agent gave back, as extracted_answer or a.b[0]; without one
--                     there are no answers
--
-- Columns:
--   agent_name   the agent
--   task_index   the task
--   answers      the answer of each of the task's rollouts, by rollout_index; null where one gave none
--   no_answer    1 for each of the task's rollouts that gave none, else 0

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
