-- pass@k, pass^k, best-of-k and pass@1[avg-of-k] of every metric, for every k up to the number of repeats.
--
-- Each is computed for a task, then averaged: avg_of_k over all tasks, the others over those with k scores or more.
-- A metric is binary for a task if the task's scores are all 0 or 1; n is the number of scores, c the number of ones.
--
-- Parameters: none.
--
-- Columns:
--   agent_name     the agent
--   metric         name of the metric
--   k              number of rollouts of a task
--   num_tasks      tasks with k scores or more
--   pass_at_k      binary: 1 - C(n - c, k) / C(n, k), the chance that at least one of k is right (Chen et al. 2021);
--                  others: the maximum of the first k
--   pass_at_k_stderr   standard error of pass_at_k over tasks
--   pass_hat_k     binary: C(c, k) / C(n, k), the chance that all of k are right (Yao et al. 2024); others: null
--   pass_hat_k_stderr   standard error of pass_hat_k over tasks
--   best_of_k      expected maximum of k scores drawn from those of the task
--   avg_of_k       mean of the first k scores; of all scores for a task with fewer
--   planned, done, failed, pending   rollouts of the agent: how much of the sweep the numbers cover

WITH sizes AS (
    SELECT agent_name, max(num_rollouts) AS max_k
    FROM scores
    GROUP BY agent_name
),
computed AS (
    SELECT
        scores.agent_name,
        scores.metric,
        sizes.max_k,
        summary_each(pass_at_each_k(scores.rollout_scores) ORDER BY scores.task_index) AS pass_at,
        summary_each(pass_hat_each_k(scores.rollout_scores) ORDER BY scores.task_index) AS pass_hat,
        summary_each(best_of_each_k(scores.rollout_scores) ORDER BY scores.task_index) AS best_of,
        summary_each(mean_of_each_first_k(scores.rollout_scores, sizes.max_k) ORDER BY scores.task_index)
            AS avg_of
    FROM sizes
    JOIN scores ON scores.agent_name = sizes.agent_name
    GROUP BY scores.agent_name, scores.metric, sizes.max_k
),
listed AS (
    SELECT
        agent_name,
        metric,
        unnest(range(1, max_k + 1)) AS k,
        unnest(pass_at) AS pass_at,
        unnest(pass_hat) AS pass_hat,
        unnest(best_of) AS best_of,
        unnest(avg_of) AS avg_of
    FROM computed
)
SELECT
    listed.agent_name,
    metric,
    k,
    coalesce(pass_at['count'], 0) AS num_tasks,
    pass_at['mean'] AS pass_at_k,
    pass_at['std'] / sqrt(pass_at['count']) AS pass_at_k_stderr,
    pass_hat['mean'] AS pass_hat_k,
    pass_hat['std'] / sqrt(pass_hat['count']) AS pass_hat_k_stderr,
    best_of['mean'] AS best_of_k,
    avg_of['mean'] AS avg_of_k,
    coverage.planned,
    coverage.done,
    coverage.failed,
    coverage.pending
FROM listed
LEFT JOIN coverage ON coverage.agent_name = listed.agent_name
ORDER BY agent_name, metric, k
