-- The answers of an agent in the form that its server receives.
--
-- Reads: rollouts, and the function verify_response(task_index, rollout_index, attempt, result).
--
-- Parameters:
--   agent   the agent
--
-- Columns:
--   response   JSON object

-- The answers are shortened before they are sorted, since whole answers can exceed the memory.
SELECT response
FROM (
    SELECT task_index, rollout_index, verify_response(task_index, rollout_index, CAST(attempt AS BIGINT), result) AS response
    FROM rollouts
    WHERE agent_name = $agent
)
ORDER BY task_index, rollout_index
