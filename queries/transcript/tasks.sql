-- The tasks of a run, and how their rollouts did.
--
-- Reads: tasks, rollouts, attempts. `$metrics` is replaced by the mean of every other metric.
--
-- Columns:
--   task_index, agent_name
--   planned, done, failed, pending   rollouts of the task
--   mean, spread     mean and standard deviation of the rewards, without masked ones
--   pass_rate        share of these rewards that are 1 or more
--   attempts         attempts at its rollouts
--   input_tokens, output_tokens   sums over its rollouts
--   latency_ms       mean latency of its rollouts
--   the mean of every other metric, under its name
SELECT
    planned.task_index,
    planned.agent_name,
    planned.planned,
    coalesce(answered.done, 0) AS done,
    coalesce(given_up.failed, 0) AS failed,
    planned.planned - coalesce(answered.done, 0) - coalesce(given_up.failed, 0) AS pending,
    coalesce(tried.attempts, 0) AS attempts,
    answered.* EXCLUDE (task_index, agent_name, done)
FROM (
    SELECT task_index, agent_name, sum(num_repeats) AS planned
    FROM tasks
    GROUP BY task_index, agent_name
) AS planned
LEFT JOIN (
    SELECT
        task_index,
        agent_name,
        count(*) AS done,
        avg(reward) FILTER (WHERE NOT coalesce(masked, FALSE)) AS mean,
        stddev(reward) FILTER (WHERE NOT coalesce(masked, FALSE)) AS spread,
        avg(CASE WHEN reward >= 1 THEN 1.0 ELSE 0.0 END)
            FILTER (WHERE reward IS NOT NULL AND NOT coalesce(masked, FALSE)) AS pass_rate,
        sum(input_tokens) AS input_tokens,
        sum(output_tokens) AS output_tokens,
        avg(latency_ms) AS latency_ms
        $metrics
    FROM rollouts
    GROUP BY task_index, agent_name
) AS answered
    ON planned.task_index = answered.task_index AND planned.agent_name = answered.agent_name
LEFT JOIN (
    SELECT task_index, agent_name, count(*) AS attempts
    FROM attempts
    GROUP BY task_index, agent_name
) AS tried
    ON planned.task_index = tried.task_index AND planned.agent_name = tried.agent_name
LEFT JOIN (
    SELECT attempts.task_index, attempts.agent_name, count(DISTINCT attempts.rollout_index) AS failed
    FROM attempts
    LEFT ANTI JOIN rollouts
        ON attempts.task_index = rollouts.task_index
        AND attempts.rollout_index = rollouts.rollout_index
    WHERE attempts.terminal
    GROUP BY attempts.task_index, attempts.agent_name
) AS given_up
    ON planned.task_index = given_up.task_index AND planned.agent_name = given_up.agent_name
