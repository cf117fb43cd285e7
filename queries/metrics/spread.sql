-- Standard errors and confidence intervals of the mean of every metric.
--
-- Rollouts of one task are correlated: ten of them tell less than one rollout of each of ten tasks. The standard error is
-- therefore clustered by task, and the bootstrap draws tasks.
--
-- Parameters:
--   confidence = 0.95   share of sweeps whose interval contains the true mean
--   resamples = 1000    number of bootstrap samples
--   seed = 0            seed of the bootstrap
--
-- Columns:
--   agent_name     the agent
--   metric         name of the metric
--   num_tasks      tasks that have the metric
--   count          rollouts that have it
--   mean           mean over rollouts
--   stderr         its standard error, clustered by task: sqrt(G / (G - 1) * sum_g (n_g * (mean_g - mean))^2) / N for G
--                  tasks and N rollouts (Liang and Zeger 1986, corrected as in Stata); null for one task
--   stderr_iid     std / sqrt(N), the standard error of independent rollouts
--   normal_low, normal_high         mean -+ z * stderr
--   wilson_low, wilson_high         score interval of a rate (Wilson 1927), for metrics that are 0 or 1; N is then the
--                  number of independent rollouts that would give the same stderr
--   bootstrap_low, bootstrap_high   percentiles of the means of resampled tasks (Efron 1979)
--   num_runs       runs that have the metric, see the family runs
--   std_across_runs, stderr_across_runs   standard deviation and standard error of the means of the runs
--   mean_task_std  mean of the standard deviations within tasks that have at least two scores
--   planned, done, failed, pending   rollouts of the agent: how much of the sweep the numbers cover

WITH per_task AS (
    SELECT agent_name, metric, task_index, list_statistics(rollout_scores) AS task
    FROM scores
),
runs AS (
    SELECT agent_name, metric, unnest(summary_each(rollout_scores ORDER BY task_index)) AS run
    FROM scores
    GROUP BY agent_name, metric
),
across_runs AS (
    SELECT agent_name, metric, count(run['mean']) AS num_runs, stddev_samp(run['mean']) AS std_across_runs
    FROM runs
    GROUP BY agent_name, metric
),
clustered AS (
    SELECT
        per_task.agent_name,
        per_task.metric,
        first_value(totals.statistics ORDER BY task_index) AS whole,
        avg(task['std']) AS mean_task_std,
        count(*) AS num_tasks,
        max(task['count']) AS largest_task,
        exact_sum(power(task['count'] * (task['mean'] - totals.statistics['mean']), 2)) AS squares,
        bootstrap_interval(
            task['count'] * task['mean'], CAST(task['count'] AS DOUBLE), $confidence, $resamples, $seed
            ORDER BY task_index
        ) AS bootstrap
    FROM totals
    JOIN per_task ON per_task.agent_name = totals.agent_name AND per_task.metric = totals.metric
    WHERE task['count'] > 0
    GROUP BY per_task.agent_name, per_task.metric
),
measured AS (
    SELECT
        *,
        whole['count'] AS count,
        whole['mean'] AS mean,
        sqrt(CAST(num_tasks AS DOUBLE) / nullif(num_tasks - 1, 0) * squares) / whole['count'] AS stderr,
        normal_quantile(0.5 + $confidence / 2) AS z
    FROM clustered
),
sized AS (
    SELECT
        *,
        CASE
            WHEN largest_task = 1 THEN CAST(count AS DOUBLE)
            WHEN stderr > 0 THEN least(mean * (1 - mean) / (stderr * stderr), count)
            ELSE CAST(num_tasks AS DOUBLE)
        END AS independent
    FROM measured
),
rated AS (
    SELECT
        *,
        CASE WHEN whole['is_binary'] THEN wilson_interval(mean * independent, independent, $confidence) END AS wilson
    FROM sized
)
SELECT
    rated.agent_name,
    rated.metric,
    num_tasks,
    count,
    mean,
    stderr,
    whole['std'] / sqrt(count) AS stderr_iid,
    mean - z * stderr AS normal_low,
    mean + z * stderr AS normal_high,
    wilson['low'] AS wilson_low,
    wilson['high'] AS wilson_high,
    bootstrap['low'] AS bootstrap_low,
    bootstrap['high'] AS bootstrap_high,
    num_runs,
    std_across_runs,
    std_across_runs / sqrt(num_runs) AS stderr_across_runs,
    mean_task_std,
    coverage.planned,
    coverage.done,
    coverage.failed,
    coverage.pending
FROM rated
JOIN across_runs ON across_runs.agent_name = rated.agent_name AND across_runs.metric = rated.metric
LEFT JOIN coverage ON coverage.agent_name = rated.agent_name
ORDER BY agent_name, metric
