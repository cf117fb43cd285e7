-- The tasks of a run, the one with the lowest mean reward first.
--
-- Reads: tasks, rollouts, attempts, and the function question(request).
-- Columns: task_index, agent_name, num_rollouts, num_done, num_failed, mean_reward (null if no rollout has one that
-- counts), question (the beginning of the prompt).
SELECT
    planned.task_index,
    planned.agent_name,
    planned.num_rollouts,
    coalesce(done.num_done, 0) AS num_done,
    coalesce(failed.num_failed, 0) AS num_failed,
    done.mean_reward,
    planned.question
FROM (
    SELECT task_index, agent_name, sum(num_repeats) AS num_rollouts, min(question(request)) AS question
    FROM tasks
    GROUP BY task_index, agent_name
) AS planned
LEFT JOIN (
    SELECT
        task_index,
        agent_name,
        count(*) AS num_done,
        avg(reward) FILTER (WHERE NOT coalesce(masked, FALSE)) AS mean_reward
    FROM rollouts
    GROUP BY task_index, agent_name
) AS done
    ON planned.task_index = done.task_index
    AND planned.agent_name = done.agent_name
LEFT JOIN (
    SELECT attempts.task_index, attempts.agent_name, count(DISTINCT attempts.rollout_index) AS num_failed
    FROM attempts
    LEFT ANTI JOIN rollouts
        ON attempts.task_index = rollouts.task_index
        AND attempts.rollout_index = rollouts.rollout_index
    WHERE attempts.terminal
    GROUP BY attempts.task_index, attempts.agent_name
) AS failed
    ON planned.task_index = failed.task_index
    AND planned.agent_name = failed.agent_name
ORDER BY done.mean_reward ASC NULLS LAST, planned.task_index
