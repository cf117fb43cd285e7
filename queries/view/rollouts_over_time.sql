-- The rollouts of a run over time: for each stretch, how many were answered, how fast, and their tokens.
--
-- Reads: rollouts.
--
-- Parameters:
--   begin   the first moment, in microseconds since the epoch
--   width   length of a stretch, in microseconds
--
-- Columns:
--   bin            number of the stretch, from 0
--   num_rollouts   rollouts that were answered
--   p50_ms, p95_ms   quantiles of their latency, estimated (t-digest)
--   input_tokens, output_tokens   sums of their tokens
SELECT
    (CAST(started_at AS BIGINT) + CAST(latency_ms * 1000 AS BIGINT) - $begin) / $width AS bin,
    count(*) AS num_rollouts,
    approx_percentile_cont(0.5) WITHIN GROUP (ORDER BY latency_ms) AS p50_ms,
    approx_percentile_cont(0.95) WITHIN GROUP (ORDER BY latency_ms) AS p95_ms,
    sum(input_tokens) AS input_tokens,
    sum(output_tokens) AS output_tokens
FROM rollouts
GROUP BY bin
ORDER BY bin
