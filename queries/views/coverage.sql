-- How much of what was asked of each agent is there.
--
-- Parameters: none.
--
-- Columns:
--   agent_name   the agent
--   planned      rollouts that were asked for; of files that do not say what was asked, those that are there
--   done         of these, the ones that are there
--   failed       of these, given up: the last attempt at them was terminal
--   pending      of these, neither done nor failed
--   masked       of those that are done, or not asked for, the ones that are not accepted

WITH asked AS (
    SELECT agent_name, sum(num_repeats) AS planned
    FROM tasks
    GROUP BY agent_name
),
landed AS (
    SELECT agent_name, count(*) AS num_rollouts, count(*) FILTER (WHERE masked) AS masked
    FROM rollouts
    GROUP BY agent_name
),
done AS (
    SELECT tasks.agent_name, count(*) AS done
    FROM tasks
    JOIN rollouts
        ON tasks.task_index = rollouts.task_index
        AND tasks.first_rollout_index <= rollouts.rollout_index
        AND tasks.first_rollout_index + tasks.num_repeats > rollouts.rollout_index
    GROUP BY tasks.agent_name
),
given_up AS (
    SELECT last.agent_name, count(*) AS failed
    FROM (
        SELECT ended.agent_name, ended.task_index, ended.rollout_index
        FROM (SELECT * FROM attempts WHERE terminal) AS ended
        LEFT ANTI JOIN attempts AS later
            ON ended.task_index = later.task_index
            AND ended.rollout_index = later.rollout_index
            AND ended.attempt < later.attempt
    ) AS last
    LEFT ANTI JOIN rollouts
        ON last.task_index = rollouts.task_index
        AND last.rollout_index = rollouts.rollout_index
    GROUP BY last.agent_name
),
counted AS (
    SELECT
        coalesce(asked.agent_name, landed.agent_name) AS agent_name,
        coalesce(asked.planned, landed.num_rollouts) AS planned,
        CASE WHEN asked.planned IS NULL THEN landed.num_rollouts ELSE coalesce(done.done, 0) END AS done,
        coalesce(given_up.failed, 0) AS failed,
        coalesce(landed.masked, 0) AS masked
    FROM asked
    FULL JOIN landed ON asked.agent_name = landed.agent_name
    LEFT JOIN done ON asked.agent_name = done.agent_name
    LEFT JOIN given_up ON asked.agent_name = given_up.agent_name
)
SELECT agent_name, planned, done, failed, planned - done - failed AS pending, masked
FROM counted
