-- What earlier processes collected of each task: rewards and tokens.
--
-- Reads: rollouts.
-- Parameters: $masks (whether the rewards of masked rollouts are left out).
-- Columns: agent_name, task_index, num_rewards, reward_sum, input_tokens, output_tokens.
SELECT
    agent_name,
    task_index,
    count(CASE WHEN masked AND $masks THEN NULL ELSE reward END) AS num_rewards,
    coalesce(sum(CASE WHEN masked AND $masks THEN NULL ELSE reward END), 0.0) AS reward_sum,
    sum(input_tokens) AS input_tokens,
    sum(output_tokens) AS output_tokens
FROM rollouts
GROUP BY agent_name, task_index
