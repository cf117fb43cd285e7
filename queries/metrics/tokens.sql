-- Token counts, token rates and costs of the rollouts of each agent.
--
-- Prices come from the settings of an agent (input_price, output_price); without them costs are null. Failed attempts are
-- not counted, since their tokens are unknown.
--
-- Parameters: none.
--
-- Columns:
--   agent_name      the agent
--   num_rollouts    rollouts that are done
--   input_tokens, output_tokens, total_tokens   sums over the rollouts that report them
--   mean_output_tokens, p50_output_tokens, p99_output_tokens, max_output_tokens   per rollout; the
--                   quantiles are estimated (t-digest)
--   output_tokens_per_second   output tokens / the sum of the latencies of their rollouts
--   truncated_rate   share of truncated rollouts among those that say whether they are complete
--   cost            cost of all rollouts, in the currency of the prices
--   cost_per_rollout   cost / num_rollouts

WITH totals AS (
    SELECT
        agent_name,
        count(*) AS num_rollouts,
        sum(input_tokens) AS input_tokens,
        sum(output_tokens) AS output_tokens,
        sum(total_tokens) AS total_tokens,
        avg(output_tokens) AS mean_output_tokens,
        approx_percentile_cont(0.5) WITHIN GROUP (ORDER BY CAST(output_tokens AS DOUBLE)) AS p50_output_tokens,
        approx_percentile_cont(0.99) WITHIN GROUP (ORDER BY CAST(output_tokens AS DOUBLE)) AS p99_output_tokens,
        max(output_tokens) AS max_output_tokens,
        sum(latency_ms) FILTER (WHERE output_tokens IS NOT NULL) / 1000.0 AS seconds,
        avg(CASE WHEN truncated THEN 1.0 WHEN NOT truncated THEN 0.0 END) AS truncated_rate
    FROM rollouts
    GROUP BY agent_name
),
priced AS (
    SELECT
        totals.*,
        (coalesce(input_tokens, 0) * prices.input_price + coalesce(output_tokens, 0) * prices.output_price)
            / 1000000.0 AS cost
    FROM totals
    LEFT JOIN prices ON prices.agent_name = totals.agent_name
)
SELECT
    agent_name,
    num_rollouts,
    input_tokens,
    output_tokens,
    total_tokens,
    mean_output_tokens,
    p50_output_tokens,
    p99_output_tokens,
    max_output_tokens,
    output_tokens / nullif(seconds, 0.0) AS output_tokens_per_second,
    truncated_rate,
    cost,
    cost / num_rollouts AS cost_per_rollout
FROM priced
ORDER BY agent_name
