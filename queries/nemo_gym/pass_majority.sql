-- pass@k, pass@1[avg-of-k] and majority@k of named scores in percent, as NeMo Gym's benchmarks report them.
--
-- Reads: accepted, answers, named_scores.
--
-- Parameters:
--   num_tasks = 0   number of tasks for majority@k, including ones without rollouts; 0: the tasks with rollouts
--
-- Columns:
--   agent_name       the agent
--   name             name of the score; no_answer is 1 where a rollout gave no answer
--   k                number of rollouts of a task
--   pass_at_k        100 * the sum over tasks / the number of tasks that have k scores; null if none has
--   avg_of_k         100 * the mean over tasks of the mean of the first k scores
--   majority_at_k    100 * sum over tasks of the most frequent answer's score / number of tasks; null without answers
--   mean_task_std    mean over tasks of the standard deviation of the first k, not in percent

WITH sizes AS (
    SELECT agent_name, CAST(max(num_rollouts) AS BIGINT) AS max_k, count(*) AS num_tasks
    FROM (SELECT agent_name, task_index, count(*) AS num_rollouts FROM accepted GROUP BY agent_name, task_index) AS n
    GROUP BY agent_name
),
placed AS (
    SELECT named_scores.*, sizes.max_k, sizes.num_tasks
    FROM sizes
    JOIN named_scores ON named_scores.agent_name = sizes.agent_name
),
computed AS (
    SELECT
        agent_name,
        name,
        max_k,
        summary_each(pass_at_each_k(rollout_scores) ORDER BY task_index) AS pass_at,
        summary_each(mean_of_each_first_k(rollout_scores, max_k) ORDER BY task_index) AS avg_of,
        summary_each(std_of_each_first_k(rollout_scores, max_k) ORDER BY task_index) AS within
    FROM placed
    GROUP BY agent_name, name, max_k
),
voted AS (
    SELECT
        placed.agent_name,
        placed.name,
        placed.num_tasks,
        summary_each(
            majority_at_each_k(placed.rollout_scores, answers.answers, placed.max_k) ORDER BY placed.task_index
        ) AS majority
    FROM placed
    JOIN answers ON answers.agent_name = placed.agent_name AND answers.task_index = placed.task_index
    GROUP BY placed.agent_name, placed.name, placed.num_tasks
),
listed AS (
    SELECT
        computed.agent_name,
        computed.name,
        CASE WHEN $num_tasks > 0 THEN $num_tasks ELSE voted.num_tasks END AS counted_tasks,
        unnest(range(1, max_k + 1)) AS k,
        unnest(pass_at) AS pass_at,
        unnest(avg_of) AS avg_of,
        unnest(majority) AS majority,
        unnest(within) AS within
    FROM computed
    LEFT JOIN voted ON voted.agent_name = computed.agent_name AND voted.name = computed.name
)
SELECT
    agent_name,
    name,
    k,
    100.0 * pass_at['sum'] / pass_at['count'] AS pass_at_k,
    100.0 * avg_of['sum'] / avg_of['count'] AS avg_of_k,
    100.0 * majority['sum'] / counted_tasks AS majority_at_k,
    within['mean'] AS mean_task_std
FROM listed
ORDER BY agent_name, k, name
