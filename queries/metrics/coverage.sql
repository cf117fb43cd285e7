-- How many of the planned rollouts of each agent are done. Read scores together with it: they cover only what is done.
--
-- Parameters: none.
--
-- Columns:
--   agent_name   the agent
--   planned      planned rollouts
--   done         planned rollouts that are done
--   failed       planned rollouts that failed
--   pending      planned rollouts that are neither done nor failed
--   done_share   done / planned
--   masked       rollouts that quality metrics leave out, since their environment masked them

SELECT
    agent_name,
    planned,
    done,
    failed,
    pending,
    CASE WHEN planned > 0 THEN CAST(done AS DOUBLE) / planned END AS done_share,
    masked
FROM coverage
ORDER BY agent_name
