-- What failed, in any order: the answers that agents flagged as failures, and the attempts that gave no answer.
--
-- Reads: attempts, rollouts.
--
-- Parameters:
--   without_answer = false   attempts that gave no answer as well, but for those that reached nobody or were cut off; and
--                            none of rollouts that are still to be tried, since NeMo Gym would count them as its own
--
-- Columns: task_index, rollout_index, attempt, sent_at, answer (null where there is none), body (how that of an error
-- begins, or null), outcome, http_status, error.
WITH ended AS (
    SELECT task_index, rollout_index FROM attempts WHERE terminal
    UNION
    SELECT task_index, rollout_index FROM rollouts
)
SELECT
    attempts.task_index,
    attempts.rollout_index,
    attempt,
    dispatched_at AS sent_at,
    CASE WHEN outcome = 'agent_flagged' THEN answer ELSE NULL END AS answer,
    answer AS body,
    outcome,
    http_status,
    error
FROM attempts
LEFT JOIN ended
    ON attempts.task_index = ended.task_index
    AND attempts.rollout_index = ended.rollout_index
WHERE (outcome = 'agent_flagged' AND answer IS NOT NULL)
    OR (
        $without_answer
        AND ended.task_index IS NOT NULL
        AND server_ms IS NOT NULL
        AND outcome IN ('infra', 'data', 'timeout')
    )
