-- The attempts of a run over time: for each stretch, how many were sent and how many ended, by outcome.
--
-- Reads: attempts.
--
-- Parameters:
--   begin   the first moment, in microseconds since the epoch
--   width   length of a stretch, in microseconds
--
-- Columns:
--   bin          number of the stretch, from 0
--   outcome      how the attempts ended; empty for those that were sent
--   dispatched   attempts that were sent
--   finished     attempts that ended
--   limit        the highest limit of calls in flight when one was sent
SELECT
    (CAST(dispatched_at AS BIGINT) - $begin) / $width AS bin,
    '' AS outcome,
    count(*) AS dispatched,
    0 AS finished,
    max(concurrency_limit) AS limit
FROM attempts
GROUP BY bin
UNION ALL
SELECT
    (CAST(finished_at AS BIGINT) - $begin) / $width AS bin,
    outcome,
    0 AS dispatched,
    count(*) AS finished,
    NULL AS limit
FROM attempts
WHERE finished_at IS NOT NULL
GROUP BY bin, outcome
ORDER BY bin, outcome
