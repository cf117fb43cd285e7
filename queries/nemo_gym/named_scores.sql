-- The scores of each task by their names in NeMo Gym, and no_answer, which is 1 where a rollout gave no answer.
--
-- Reads: scores, answers, score_names (name, metric).
--
-- Columns:
--   agent_name       the agent
--   name             name of the score
--   task_index       the task
--   rollout_scores   the scores of its rollouts, in their order

SELECT scores.agent_name, score_names.name, scores.task_index, scores.rollout_scores
FROM score_names
JOIN scores ON scores.metric = score_names.metric
UNION ALL
SELECT agent_name, 'no_answer' AS name, task_index, no_answer AS rollout_scores
FROM answers
