-- The latency of the rollouts of each agent, from the request to the last byte of the answer.
--
-- Parameters: none.
--
-- Columns:
--   agent_name     the agent
--   num_rollouts   rollouts that are done
--   mean_ms        mean, in milliseconds
--   p50_ms, p90_ms, p95_ms, p99_ms   quantiles, estimated (t-digest) in memory that does not grow with the run;
--                  list_quantiles(array_agg(latency_ms), [0.5]) gives exact ones
--   max_ms         maximum
--   first_started_at, last_finished_at   when the first rollout was sent and the last one was answered
--   rollouts_per_second   num_rollouts / the time between the two

WITH totals AS (
    SELECT
        agent_name,
        count(*) AS num_rollouts,
        avg(latency_ms) AS mean_ms,
        approx_percentile_cont(0.5) WITHIN GROUP (ORDER BY latency_ms) AS p50_ms,
        approx_percentile_cont(0.9) WITHIN GROUP (ORDER BY latency_ms) AS p90_ms,
        approx_percentile_cont(0.95) WITHIN GROUP (ORDER BY latency_ms) AS p95_ms,
        approx_percentile_cont(0.99) WITHIN GROUP (ORDER BY latency_ms) AS p99_ms,
        max(latency_ms) AS max_ms,
        min(started_at) AS first_started_at,
        max(CAST(started_at AS BIGINT) + CAST(latency_ms * 1000.0 AS BIGINT)) AS last_finished
    FROM rollouts
    GROUP BY agent_name
)
SELECT
    agent_name,
    num_rollouts,
    mean_ms,
    p50_ms,
    p90_ms,
    p95_ms,
    p99_ms,
    max_ms,
    first_started_at,
    arrow_cast(last_finished, 'Timestamp(Microsecond, Some("UTC"))') AS last_finished_at,
    num_rollouts / nullif((last_finished - CAST(first_started_at AS BIGINT)) / 1000000.0, 0.0) AS rollouts_per_second
FROM totals
ORDER BY agent_name
