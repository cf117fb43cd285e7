"""Statistics and pass@k of a run in DuckDB's SQL: what the benchmark of the metrics compares itself with.

Standard output stays empty: `duckdb.py ROLLOUTS OUTPUT`. pass@k is by logarithms of factorials and best-of-k is left out,
so that DuckDB has the easier task.
"""

import os
import sys

import duckdb

rollouts, output = sys.argv[1:3]
os.makedirs(output, exist_ok=True)
database = duckdb.connect(os.path.join(output, "temporary.db"))
database.execute(f"SET memory_limit = '2GB'; SET temp_directory = '{output}/temporary'; SET threads = {os.cpu_count()}")
database.execute(f"""
    CREATE TEMP VIEW scores AS
    SELECT agent_name, task_index, rollout_index, unnest(map_keys(metrics)) AS metric, unnest(map_values(metrics)) AS value
    FROM read_parquet('{rollouts}/*.parquet')
""")
STATISTICS = "count(value) AS count, avg(value) AS mean, max(value) AS max, min(value) AS min, \
    median(value) AS median, stddev_samp(value) AS std"
QUERIES = {
    "agent_statistics": f"SELECT agent_name, metric, {STATISTICS} FROM scores GROUP BY ALL ORDER BY ALL",
    "task_statistics": f"SELECT agent_name, task_index, metric, {STATISTICS} FROM scores GROUP BY ALL ORDER BY ALL",
    "pass_at_k": """
        WITH tasks AS (
            SELECT
                agent_name, metric, task_index, count(*) AS n, count(*) FILTER (WHERE value = 1) AS c,
                bool_and(value IN (0, 1)) AS is_binary, list(value ORDER BY rollout_index) AS list
            FROM scores
            GROUP BY ALL
        ),
        each AS (SELECT *, unnest(range(1, n + 1)) AS k FROM tasks)
        SELECT
            agent_name, metric, k, count(*) AS num_tasks,
            avg(CASE
                WHEN NOT is_binary THEN list_max(list[1:k])
                WHEN n - c < k THEN 1.0
                ELSE 1.0 - exp(lgamma(n - c + 1) - lgamma(n - c - k + 1) - lgamma(n + 1) + lgamma(n - k + 1))
            END) AS pass_at_k,
            avg(CASE
                WHEN is_binary AND c < k THEN 0.0
                WHEN is_binary THEN exp(lgamma(c + 1) - lgamma(c - k + 1) - lgamma(n + 1) + lgamma(n - k + 1))
            END) AS pass_hat_k,
            avg(list_avg(list[1:k])) AS avg_of_k
        FROM each
        GROUP BY ALL
        ORDER BY ALL
    """,
}
for name, query in QUERIES.items():
    database.execute(f"COPY ({query}) TO '{output}/{name}.parquet' (FORMAT parquet, COMPRESSION zstd)")
