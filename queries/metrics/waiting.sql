-- What the attempts of each agent waited for, and for how long.
--
-- Parameters: none.
--
-- Columns:
--   agent_name     the agent
--   state          permit (a place among the calls in flight), rate (the agent's rate limits), connect (a connection),
--                  server (the answer), client (the collector's own work)
--   num_attempts   attempts with a known time in this state
--   seconds        total time in this state
--   share          seconds / the time of the agent's attempts in all states
--   mean_ms, max_ms   mean and maximum over attempts
--   p50_ms, p95_ms, p99_ms   quantiles over attempts, estimated (t-digest) in bounded memory

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
