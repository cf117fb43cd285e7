-- The three most frequent errors of each agent, the most frequent first.
--
-- Reads: attempts.
-- Columns: agent_name, outcome, http_status, error (the whole one of one of the attempts), num_attempts.
--
-- Errors that differ only in words with a digit (a port, a time, a request id) count as the same error.
SELECT agent_name, outcome, http_status, error, num_attempts
FROM (
    SELECT
        agent_name,
        outcome,
        http_status,
        error,
        num_attempts,
        row_number() OVER (
            PARTITION BY agent_name
            ORDER BY num_attempts DESC, outcome, http_status, error
        ) AS place
    FROM (
        SELECT
            agent_name,
            outcome,
            http_status,
            regexp_replace(substr(error, 1, 300), '[[:alnum:]_.-]*[0-9][[:alnum:]_.-]*', '#', 'g') AS kind,
            min(error) AS error,
            count(*) AS num_attempts
        FROM attempts
        WHERE outcome NOT IN ('ok', 'interrupted', 'superseded')
        GROUP BY agent_name, outcome, http_status, kind
    ) AS kinds
) AS ranked
WHERE place <= 3
ORDER BY agent_name, place
