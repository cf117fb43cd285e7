-- The rollouts that count in metrics of quality: all that are done, except, under the rules of NeMo Gym 0.7, those that
-- their environment masked.
--
-- Parameters: none.
--
-- Columns:
--   *   the columns of rollouts

SELECT *
FROM rollouts
WHERE masked IS NOT TRUE
