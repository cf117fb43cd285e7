-- Verdicts by task, in the order of the report: numbers before texts, each sorted as text.
--
-- Reads: repeats, flags.
--
-- Columns: name, repeats, healthy, unhealthy, unobserved, flags (in the order of the rules).
WITH tasks AS (
    SELECT
        task,
        task_name,
        starts_with(task, '"') AS is_text,
        count(*) AS repeats,
        sum(CASE WHEN verdict = 'healthy' THEN 1 ELSE 0 END) AS healthy,
        sum(CASE WHEN verdict = 'unhealthy' THEN 1 ELSE 0 END) AS unhealthy,
        sum(CASE WHEN verdict = 'unobserved' THEN 1 ELSE 0 END) AS unobserved
    FROM repeats
    GROUP BY task, task_name
),
flagged AS (
    SELECT task, array_agg(rule ORDER BY rule) AS flags
    FROM flags
    WHERE detail IS NOT NULL
    GROUP BY task
),
-- A number and a text with the same spelling share one entry: in the number's place, with the text's counts.
named AS (
    SELECT
        *,
        row_number() OVER (PARTITION BY task_name ORDER BY is_text DESC) AS place,
        bool_and(is_text) OVER (PARTITION BY task_name) AS is_placed_as_text
    FROM tasks
)
SELECT named.task_name AS name, repeats, healthy, unhealthy, unobserved, flags
FROM named
LEFT JOIN flagged ON named.task = flagged.task
WHERE place = 1
ORDER BY is_placed_as_text, named.task_name
