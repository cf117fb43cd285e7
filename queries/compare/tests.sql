-- The test that fits each metric.
--
-- Reads: chosen (differences of the metrics that are compared).
--
-- Columns:
--   pair        number of the pair
--   metric      name of the metric
--   is_binary   whether all scores of both sides are 0 or 1
--   test        for binary metrics with one rollout per task McNemar's test, exact ('mcnemar_exact') if fewer than 25
--               tasks differ, else asymptotic ('mcnemar'); with repeats, if 25 tasks or more differ, a clustered form
--               ('mcnemar_clustered'); otherwise 'permutation', which flips signs

SELECT
    pair,
    metric,
    is_binary,
    CASE
        WHEN is_binary AND is_single AND num_different < 25 THEN 'mcnemar_exact'
        WHEN is_binary AND is_single THEN 'mcnemar'
        WHEN is_binary AND num_different >= 25 THEN 'mcnemar_clustered'
        ELSE 'permutation'
    END AS test
FROM (
    SELECT
        pair,
        metric,
        bool_and(is_binary) AS is_binary,
        max(base_count) = 1 AND max(candidate_count) = 1 AS is_single,
        count(*) FILTER (WHERE difference <> 0.0) AS num_different
    FROM chosen
    WHERE difference IS NOT NULL
    GROUP BY pair, metric
) AS kinds
