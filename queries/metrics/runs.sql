-- The mean of every metric over the first rollouts of all tasks, over the second rollouts, and so on.
--
-- Parameters: none.
--
-- Columns:
--   agent_name   the agent
--   metric       name of the metric
--   run          place of the rollout among those of its task, from 0
--   num_tasks    tasks that have the metric in that place
--   mean         mean over these tasks
--   planned, done, failed, pending   rollouts of the agent: how much of the sweep the numbers cover

WITH computed AS (
    SELECT agent_name, metric, summary_each(rollout_scores ORDER BY task_index) AS runs
    FROM scores
    GROUP BY agent_name, metric
),
listed AS (
    SELECT agent_name, metric, unnest(range(0, CAST(cardinality(runs) AS BIGINT))) AS run, unnest(runs) AS summary
    FROM computed
)
SELECT
    listed.agent_name,
    metric,
    run,
    summary['count'] AS num_tasks,
    summary['mean'] AS mean,
    coverage.planned,
    coverage.done,
    coverage.failed,
    coverage.pending
FROM listed
LEFT JOIN coverage ON coverage.agent_name = listed.agent_name
ORDER BY agent_name, metric, run
