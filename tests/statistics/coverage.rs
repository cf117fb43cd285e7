//! Intervals over 2,000 simulated sweeps, whose true mean is known.

use crate::query::{first, integers, numbers, register, rows, session};

const SWEEPS: i64 = 2_000;
const TASKS: i64 = 100;
const REPEATS: i64 = 4;

/// Binary scores of tasks whose difficulty is drawn anew in each sweep: the success rate of a task is
/// the larger of two uniform numbers, a Beta(2, 1) distribution with mean 2/3.
fn right_rollouts() -> impl Iterator<Item = f64> {
    let mut random = fastrand::Rng::with_seed(20_260_822);
    (0..SWEEPS * TASKS).map(move |_| {
        let rate = random.f64().max(random.f64());
        (0..REPEATS)
            .map(|_| f64::from(u8::from(random.f64() < rate)))
            .sum()
    })
}

#[tokio::test]
async fn intervals_over_tasks_cover_the_true_mean() {
    let ctx = session(2);
    register(
        &ctx,
        "tasks",
        vec![
            (
                "sweep",
                integers((0..SWEEPS * TASKS).map(|task| task / TASKS)),
            ),
            (
                "task_index",
                integers((0..SWEEPS * TASKS).map(|task| task % TASKS)),
            ),
            ("total", numbers(right_rollouts())),
            ("n", numbers((0..SWEEPS * TASKS).map(|_| REPEATS as f64))),
        ],
    );
    let result = rows(
        &ctx,
        "WITH means AS (
            SELECT sweep, sum(total) / sum(n) AS mean, sum(n) AS n,
                bootstrap_interval(total, n, 0.95, 400, 11 ORDER BY task_index) AS bootstrap
            FROM tasks GROUP BY sweep),
        errors AS (
            SELECT sweep, mean, bootstrap, sqrt(mean * (1 - mean) / (max(means.n) - 1)) AS naive,
                sqrt(count(*) / (count(*) - 1.0) * sum(power(total - tasks.n * mean, 2))) / sum(tasks.n) AS clustered
            FROM tasks JOIN means USING (sweep) GROUP BY sweep, mean, bootstrap)
        SELECT count(*) AS sweeps,
            avg(CASE WHEN 2.0 / 3 BETWEEN bootstrap['low'] AND bootstrap['high'] THEN 1.0 ELSE 0 END) AS bootstrap,
            avg(CASE WHEN abs(mean - 2.0 / 3) <= normal_quantile(0.975) * clustered THEN 1.0 ELSE 0 END) AS clustered,
            avg(CASE WHEN abs(mean - 2.0 / 3) <= normal_quantile(0.975) * naive THEN 1.0 ELSE 0 END) AS naive,
            avg(clustered) AS std_err, avg(bootstrap['std']) AS bootstrap_std, stddev(mean) AS std
        FROM errors",
    )
    .await;
    assert_eq!(first(&result, "sweeps"), SWEEPS as f64);
    for interval in ["bootstrap", "clustered"] {
        let covered = first(&result, interval);
        assert!((0.93..=0.97).contains(&covered), "{interval}: {covered}");
    }
    let naive = first(&result, "naive");
    assert!(
        naive < 0.90,
        "an interval that takes repeats for independent tasks covers {naive}"
    );
    // The standard errors are as large as the means really spread.
    let spread = first(&result, "std");
    for estimate in ["std_err", "bootstrap_std"] {
        let estimate = first(&result, estimate);
        assert!(
            (estimate / spread - 1.0).abs() < 0.06,
            "{estimate} {spread}"
        );
    }
}
