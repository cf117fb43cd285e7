-- The rollouts of each agent that are done, and their rewards.
--
-- Reads: tasks, rollouts.
-- Columns: agent_name, num_done, num_rewards (rollouts that have a reward and are not masked), reward_sum.
--
-- Rollouts that were not planned, which an import can bring, are not counted.
SELECT
    tasks.agent_name,
    count(*) AS num_done,
    count(CASE WHEN rollouts.masked THEN NULL ELSE rollouts.reward END) AS num_rewards,
    sum(CASE WHEN rollouts.masked THEN NULL ELSE rollouts.reward END) AS reward_sum
FROM tasks
INNER JOIN rollouts
    ON tasks.task_index = rollouts.task_index
    AND tasks.first_rollout_index <= rollouts.rollout_index
    AND tasks.first_rollout_index + tasks.num_repeats > rollouts.rollout_index
GROUP BY tasks.agent_name
