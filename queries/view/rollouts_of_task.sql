-- The rollouts of one task, done or not.
--
-- Reads: tasks, rollouts, attempts. `$task` is replaced by the index of the task.
--
-- Columns: rollout_index, agent_name, state (done, failed or pending), reward, input_tokens, output_tokens, latency_ms,
-- attempts, error (of the last attempt that failed).
SELECT
    planned.rollout_index,
    planned.agent_name,
    CASE
        WHEN done.rollout_index IS NOT NULL THEN 'done'
        WHEN tried.has_failed THEN 'failed'
        ELSE 'pending'
    END AS state,
    done.reward,
    done.input_tokens,
    done.output_tokens,
    done.latency_ms,
    coalesce(tried.attempts, 0) AS attempts,
    tried.error
FROM (
    SELECT
        agent_name,
        unnest(range(first_rollout_index, first_rollout_index + num_repeats)) AS rollout_index
    FROM tasks
    WHERE task_index = $task
) AS planned
LEFT JOIN (
    SELECT rollout_index, reward, input_tokens, output_tokens, latency_ms
    FROM rollouts
    WHERE task_index = $task
) AS done
    ON planned.rollout_index = done.rollout_index
LEFT JOIN (
    SELECT
        rollout_index,
        bool_or(terminal) AS has_failed,
        count(*) AS attempts,
        last_value(error ORDER BY attempt) FILTER (WHERE error IS NOT NULL) AS error
    FROM attempts
    WHERE task_index = $task
    GROUP BY rollout_index
) AS tried
    ON planned.rollout_index = tried.rollout_index
ORDER BY planned.rollout_index
