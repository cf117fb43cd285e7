-- majority@k: the score of the most frequent answer among the first k rollouts of a task.
--
-- Parameters:
--   answer_key = ''   path of the answer in the agent's result, such as extracted_answer or a.b[0]; without a path the
--                     table is empty
--
-- Columns:
--   agent_name    the agent
--   metric        name of the metric
--   k             number of rollouts of a task; all of them for a task with fewer
--   num_tasks     tasks that have the metric
--   majority_at_k   mean over tasks of the score of the most frequent pair of answer and score among the first k rollouts
--                 that have both; the mean score of pairs that tie; 0 if no rollout has both
--   majority_at_k_stderr   standard error of majority_at_k over tasks
--   no_answer     mean over tasks of the share of the first k rollouts without an answer
--   planned, done, failed, pending   rollouts of the agent: how much of the sweep the numbers cover

WITH sizes AS (
    SELECT agent_name, max(cardinality(answers)) AS max_k
    FROM answers
    GROUP BY agent_name
),
voted AS (
    SELECT
        scores.agent_name,
        scores.metric,
        CAST(sizes.max_k AS BIGINT) AS max_k,
        summary_each(
            majority_at_each_k(scores.rollout_scores, answers.answers, CAST(sizes.max_k AS BIGINT)) ORDER BY scores.task_index
        ) AS majority,
        summary_each(
            mean_of_each_first_k(answers.no_answer, CAST(sizes.max_k AS BIGINT)) ORDER BY scores.task_index
        ) AS no_answer
    FROM sizes
    JOIN answers ON answers.agent_name = sizes.agent_name
    JOIN scores ON scores.agent_name = answers.agent_name AND scores.task_index = answers.task_index
    WHERE $answer_key <> ''
    GROUP BY scores.agent_name, scores.metric, sizes.max_k
),
listed AS (
    SELECT
        agent_name,
        metric,
        unnest(range(1, max_k + 1)) AS k,
        unnest(majority) AS majority,
        unnest(no_answer) AS no_answer
    FROM voted
)
SELECT
    listed.agent_name,
    metric,
    k,
    majority['count'] AS num_tasks,
    majority['mean'] AS majority_at_k,
    majority['std'] / sqrt(majority['count']) AS majority_at_k_stderr,
    no_answer['mean'] AS no_answer,
    coverage.planned,
    coverage.done,
    coverage.failed,
    coverage.pending
FROM listed
LEFT JOIN coverage ON coverage.agent_name = listed.agent_name
ORDER BY agent_name, metric, k
