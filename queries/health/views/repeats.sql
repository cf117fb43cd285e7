-- The rollouts of a task. Records of the same rollout count once, and as unobserved if their verdicts differ.
--
-- Reads: verdicts.
SELECT
    task,
    task_name,
    rollout,
    CASE count(DISTINCT verdict) WHEN 1 THEN min(verdict) ELSE 'unobserved' END AS verdict,
    bool_and(calls_known) AS calls_known,
    max(successful_calls) AS successful_calls
FROM verdicts
GROUP BY task, task_name, rollout
