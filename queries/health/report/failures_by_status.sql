-- Failed calls by HTTP status.
--
-- Reads: calls.
--
-- Columns: status, failed_calls.
SELECT coalesce(CAST(status_code AS VARCHAR), 'unknown') AS status, count(*) AS failed_calls
FROM calls
WHERE failed
GROUP BY coalesce(CAST(status_code AS VARCHAR), 'unknown')
ORDER BY 1
