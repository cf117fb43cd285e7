-- Attempts that were sent and have no known end yet.
--
-- Reads: unanswered.
-- Columns: agent_name, num_in_flight.
SELECT
    agent_name,
    count(*) AS num_in_flight
FROM unanswered
GROUP BY agent_name
