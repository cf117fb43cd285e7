-- When the first attempt after a moment was sent.
--
-- Reads: attempts.
-- Parameters: $since (a timestamp, included).
-- Columns: first_dispatched_at (microseconds since the epoch).
SELECT CAST(min(dispatched_at) AS BIGINT) AS first_dispatched_at
FROM attempts
WHERE dispatched_at >= $since
