-- Rollouts of each agent that were done in a stretch of time.
--
-- Reads: attempts.
-- Parameters: $since and $until (timestamps; both belong to the stretch).
-- Columns: agent_name, num_done.
SELECT agent_name, count(*) AS num_done
FROM attempts
WHERE outcome = 'ok' AND finished_at BETWEEN $since AND $until
GROUP BY agent_name
