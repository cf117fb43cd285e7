-- Calls that were sent and whose end is not known yet.
--
-- Reads: unanswered.
-- Columns: agent_name, num_in_flight.
SELECT
    agent_name,
    count(*) AS num_in_flight
FROM unanswered
GROUP BY agent_name
