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
--   mean_ms, p50_ms, p95_ms, p99_ms, max_ms   of an attempt

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
        list_quantiles(array_agg(ms), [0.5, 0.95, 0.99]) AS quantiles,
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
    quantiles[1] AS p50_ms,
    quantiles[2] AS p95_ms,
    quantiles[3] AS p99_ms,
    max_ms
FROM totals
ORDER BY agent_name, state
