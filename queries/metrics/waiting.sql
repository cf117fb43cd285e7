-- Where the time of the attempts of each agent went, by what they waited for.
--
-- Parameters: none.
--
-- Columns:
--   agent_name     the agent
--   state          permit (a place among the calls in flight), rate (the agent's rate limits), connect (a connection),
--                  server (the answer), client (the collector's own work)
--   num_attempts   attempts that know it
--   seconds        in all of them
--   share          of the time that the agent's attempts took in all states
--   mean_ms, max_ms   of an attempt
--   p50_ms, p95_ms, p99_ms   its quantiles, estimated (t-digest): exact ones would hold the times of all attempts

WITH states AS (
    SELECT
        agent_name,
        unnest(['permit', 'rate', 'connect', 'server', 'client']) AS state,
        unnest([permit_wait_ms, rate_wait_ms, connect_ms, server_ms, client_ms]) AS ms
    FROM attempts
),
totals AS (
    SELECT
        agent_name,
        state,
        count(ms) AS num_attempts,
        sum(ms) / 1000.0 AS seconds,
        avg(ms) AS mean_ms,
        approx_percentile_cont(0.5) WITHIN GROUP (ORDER BY ms) AS p50_ms,
        approx_percentile_cont(0.95) WITHIN GROUP (ORDER BY ms) AS p95_ms,
        approx_percentile_cont(0.99) WITHIN GROUP (ORDER BY ms) AS p99_ms,
        max(ms) AS max_ms
    FROM states
    GROUP BY agent_name, state
)
SELECT
    agent_name,
    state,
    num_attempts,
    seconds,
    seconds / nullif(sum(seconds) OVER (PARTITION BY agent_name), 0.0) AS share,
    mean_ms,
    p50_ms,
    p95_ms,
    p99_ms,
    max_ms
FROM totals
ORDER BY agent_name, state
