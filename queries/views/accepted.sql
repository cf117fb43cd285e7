-- The rollouts that say something of their agent: all that are there but those that their environment masked, where the
-- rules of NeMo Gym 0.7 hold.
--
-- Parameters: none.
--
-- Columns:
--   *   those of rollouts

SELECT *
FROM rollouts
WHERE masked IS NOT TRUE
