-- Outcomes, times and waiting times of the attempts of each agent.
--
-- Reads: attempts.
-- Columns: agent_name, outcome, http_status, num_attempts, first_dispatched_at, first_finished_at,
-- last_finished_at, limit_at (when the newest concurrency_limit was used; all four in microseconds
-- since the epoch), concurrency_limit, and for each of permit_wait, rate_wait, connect, server and client
-- NAME_ms (sum in milliseconds) and NAME_count (attempts that have it).
SELECT
    agent_name,
    outcome,
    http_status,
    count(*) AS num_attempts,
    CAST(min(dispatched_at) AS BIGINT) AS first_dispatched_at,
    CAST(min(finished_at) AS BIGINT) AS first_finished_at,
    CAST(max(finished_at) AS BIGINT) AS last_finished_at,
    CAST(max(dispatched_at) FILTER (WHERE concurrency_limit IS NOT NULL) AS BIGINT) AS limit_at,
    last_value(concurrency_limit ORDER BY dispatched_at)
        FILTER (WHERE concurrency_limit IS NOT NULL) AS concurrency_limit,
    sum(permit_wait_ms) AS permit_wait_ms,
    count(permit_wait_ms) AS permit_wait_count,
    sum(rate_wait_ms) AS rate_wait_ms,
    count(rate_wait_ms) AS rate_wait_count,
    sum(connect_ms) AS connect_ms,
    count(connect_ms) AS connect_count,
    sum(server_ms) AS server_ms,
    count(server_ms) AS server_count,
    sum(client_ms) AS client_ms,
    count(client_ms) AS client_count
FROM attempts
GROUP BY agent_name, outcome, http_status
