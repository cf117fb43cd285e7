-- How many of the planned rollouts of each agent are done.
--
-- Parameters: none.
--
-- Columns:
--   agent_name   the agent
--   planned      rollouts that were planned; for files that do not record a plan, those that exist
--   done         planned rollouts that are done
--   failed       planned rollouts that failed: their last attempt was terminal
--   pending      planned rollouts that are neither done nor failed
--   masked       rollouts that exist and are not accepted

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
