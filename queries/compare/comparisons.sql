-- The difference between each candidate and the base, by metric, over their common tasks.
--
-- Each task has the same weight, however many rollouts it has: all statistics are over the differences of task means, and
-- the bootstrap draws tasks.
--
-- Reads: chosen (differences of the metrics that are compared), tests, flips, overlaps, pairs.
--
-- Parameters:
--   confidence = 0.95      confidence of the interval; 1 - confidence is the significance level
--   resamples = 2000       number of bootstrap samples
--   permutations = 10000   number of random sign patterns of a permutation test
--   power = 0.8            statistical power of the minimum detectable effect
--   seed = 0               seed of the random numbers
--
-- Columns:
--   metric                     name of the metric
--   candidate                  the candidate
--   base_agent                 agent of the base
--   candidate_agent            agent of the candidate
--   num_tasks                  common tasks that have a score on both sides
--   without_base               common tasks without a score in the base
--   without_candidate          common tasks without a score in the candidate
--   base_mean                  mean of the task means of the base
--   candidate_mean             mean of the task means of the candidate
--   difference                 mean of the differences of the tasks; like the bounds, 0 if it is only the rounding of a sum
--   stderr                     standard error of the difference
--   ci_low                     lower bound of the difference: percentile of a paired bootstrap over tasks
--   ci_high                    upper bound of the difference
--   test                       the test, see tests.sql
--   p_value                    two-sided probability of such a difference or a larger one if the true one is 0
--   p_holm                     p_value after Holm's correction for all rows of this table
--   significant                whether p_holm < 1 - confidence
--   mde                        smallest true difference that a single test would find with the given power
--   is_binary                  whether all scores are 0 or 1
--   gained                     tasks that flipped for the better, see flips.sql
--   lost                       tasks that flipped for the worse

WITH summed AS (
    SELECT
        pair,
        metric,
        count(difference) AS num_tasks,
        count(base_mean) AS base_tasks,
        count(candidate_mean) AS candidate_tasks,
        exact_sum(base_mean) FILTER (WHERE difference IS NOT NULL) AS base_sum,
        exact_sum(candidate_mean) FILTER (WHERE difference IS NOT NULL) AS candidate_sum,
        exact_sum(difference) AS difference_sum,
        1e-12 * max(abs(difference)) AS rounding,
        exact_sum(difference * difference) AS square_sum,
        stddev_samp(difference) AS std
    FROM chosen
    GROUP BY pair, metric
),
intervals AS (
    SELECT
        pair,
        metric,
        bootstrap_interval(difference, 1.0, $confidence, $resamples, $seed ORDER BY task_key) AS bounds
    FROM chosen
    WHERE difference IS NOT NULL
    GROUP BY pair, metric
),
permuted AS (
    SELECT
        chosen.pair,
        chosen.metric,
        sign_flip_p(chosen.difference, $permutations, $seed ORDER BY chosen.task_key) AS p_value
    FROM chosen
    JOIN tests ON tests.pair = chosen.pair AND tests.metric = chosen.metric
    WHERE tests.test = 'permutation' AND chosen.difference IS NOT NULL
    GROUP BY chosen.pair, chosen.metric
),
flipped AS (
    SELECT
        pair,
        metric,
        count(*) FILTER (WHERE flip IN ('gained', 'improved')) AS gained,
        count(*) FILTER (WHERE flip IN ('lost', 'regressed')) AS lost
    FROM flips
    GROUP BY pair, metric
),
joined AS (
    SELECT
        summed.*,
        tests.test,
        tests.is_binary,
        bounds,
        permuted.p_value AS permuted_p,
        coalesce(flipped.gained, 0) AS gained,
        coalesce(flipped.lost, 0) AS lost
    FROM summed
    JOIN tests ON tests.pair = summed.pair AND tests.metric = summed.metric
    JOIN intervals ON intervals.pair = summed.pair AND intervals.metric = summed.metric
    LEFT JOIN permuted ON permuted.pair = summed.pair AND permuted.metric = summed.metric
    LEFT JOIN flipped ON flipped.pair = summed.pair AND flipped.metric = summed.metric
),
tested AS (
    SELECT
        *,
        std / sqrt(CAST(num_tasks AS DOUBLE)) AS stderr,
        CASE test
            WHEN 'mcnemar_exact' THEN binomial_test_p(gained, gained + lost)
            WHEN 'mcnemar'
                THEN chi_squared_sf(power(CAST(gained - lost AS DOUBLE), 2.0) / CAST(gained + lost AS DOUBLE), 1.0)
            WHEN 'mcnemar_clustered' THEN chi_squared_sf(difference_sum * difference_sum / square_sum, 1.0)
            ELSE permuted_p
        END AS p_value
    FROM joined
),
ranked AS (
    SELECT
        *,
        -- Holm's correction of m p-values: rank 1 times m, rank 2 times m - 1, and so on.
        p_value * (count(p_value) OVER () + 1 - row_number() OVER (ORDER BY p_value, pair, metric)) AS scaled
    FROM tested
),
corrected AS (
    SELECT
        *,
        least(
            1.0,
            max(scaled) OVER (ORDER BY p_value, pair, metric ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
        ) AS p_holm
    FROM ranked
)
SELECT
    corrected.metric,
    pairs.candidate,
    pairs.base_agent,
    pairs.candidate_agent,
    num_tasks,
    overlaps.in_common - base_tasks AS without_base,
    overlaps.in_common - candidate_tasks AS without_candidate,
    base_sum / num_tasks AS base_mean,
    candidate_sum / num_tasks AS candidate_mean,
    CASE WHEN abs(difference_sum) < rounding THEN 0.0 ELSE difference_sum / num_tasks END AS difference,
    stderr,
    CASE WHEN abs(bounds['low']) < rounding THEN 0.0 ELSE bounds['low'] END AS ci_low,
    CASE WHEN abs(bounds['high']) < rounding THEN 0.0 ELSE bounds['high'] END AS ci_high,
    test,
    p_value,
    p_holm,
    p_holm < 1.0 - $confidence AS significant,
    (normal_quantile(1.0 - (1.0 - $confidence) / 2.0) + normal_quantile($power)) * stderr AS mde,
    is_binary,
    gained,
    lost
FROM corrected
JOIN pairs ON pairs.pair = corrected.pair
JOIN overlaps ON overlaps.pair = corrected.pair
ORDER BY corrected.metric <> 'reward', corrected.metric, corrected.pair
