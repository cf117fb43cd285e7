-- How much of what was asked of each agent is there: a score says nothing without it.
--
-- Parameters: none.
--
-- Columns:
--   agent_name   the agent
--   planned      rollouts that were asked for
--   done         of these, the ones that are there
--   failed       of these, failed
--   pending      of these, neither done nor failed
--   done_share   done / planned
--   masked       rollouts that are there and in no metric of quality, since their environment masked them

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
