//! What `golden.py` computed.

use std::fmt::Write;

use datafusion::prelude::SessionContext;
use serde::Deserialize;

use crate::query::{
    assert_close, column, first, integers, lists, number, numbers, register, rows, session,
};

#[derive(Deserialize)]
struct Golden {
    clustered: Vec<Clustered>,
    summaries: Vec<Vec<Summary>>,
    wilson: Vec<(i64, i64, f64, f64, f64)>,
    mcnemar: Vec<(i64, i64, f64, f64, f64)>,
    permutation: Vec<Permutation>,
    holm: Vec<Holm>,
    distributions: Distributions,
    bootstrap: Vec<Bootstrap>,
}

#[derive(Deserialize)]
struct Clustered {
    scores: Vec<Vec<Option<f64>>>,
    mean: f64,
    std_err: f64,
    naive_std_err: f64,
    low: f64,
    high: f64,
}

#[derive(Deserialize)]
struct Summary {
    count: f64,
    sum: f64,
    mean: f64,
    std: Option<f64>,
}

#[derive(Deserialize)]
struct Permutation {
    x: Vec<f64>,
    y: Vec<f64>,
    p: f64,
    exact: bool,
}

#[derive(Deserialize)]
struct Holm {
    p: Vec<f64>,
    adjusted: Vec<f64>,
}

#[derive(Deserialize)]
struct Distributions {
    normal_quantile: Vec<(f64, f64)>,
    student_t_quantile: Vec<(f64, f64, f64)>,
    chi_squared_sf: Vec<(f64, f64, f64)>,
    binomial_test_p: Vec<(i64, i64, f64)>,
}

#[derive(Deserialize)]
struct Bootstrap {
    numerator: Vec<f64>,
    denominator: Vec<f64>,
    low: f64,
    high: f64,
    std: f64,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("golden.json")).unwrap()
}

/// A table `scores` with the lists of a sweep.
fn with_scores(scores: &[Vec<Option<f64>>]) -> SessionContext {
    let ctx = session(2);
    let tasks = integers(0..scores.len() as i64);
    register(
        &ctx,
        "scores",
        vec![("task_index", tasks), ("values", lists(scores))],
    );
    ctx
}

#[tokio::test]
async fn clustered_standard_errors_are_those_of_statsmodels() {
    for golden in golden().clustered {
        let ctx = with_scores(&golden.scores);
        let result = rows(
            &ctx,
            "WITH rollouts AS (SELECT task_index, unnest(values) AS score FROM scores),
                tasks AS (
                    SELECT task_index, count(score) AS n, exact_sum(score) AS total
                    FROM rollouts WHERE score IS NOT NULL GROUP BY task_index
                ),
                means AS (SELECT exact_sum(total) / sum(n) AS mean FROM tasks),
                errors AS (
                    SELECT mean, sqrt(count(*) / (count(*) - 1.0) * exact_sum(power(total - n * mean, 2)))
                        / sum(n) AS std_err
                    FROM tasks CROSS JOIN means GROUP BY mean
                )
            SELECT mean, std_err, mean - normal_quantile(0.975) * std_err AS low,
                mean + normal_quantile(0.975) * std_err AS high,
                (SELECT stddev(score) / sqrt(count(score)) FROM rollouts) AS naive_std_err
            FROM errors",
        )
        .await;
        for (name, expected) in [
            ("mean", golden.mean),
            ("std_err", golden.std_err),
            ("naive_std_err", golden.naive_std_err),
            ("low", golden.low),
            ("high", golden.high),
        ] {
            assert_close(first(&result, name), expected, 1e-11, name);
        }
    }
}

#[tokio::test]
async fn summaries_of_positions_are_those_of_numpy() {
    let golden = golden();
    for (sweep, summaries) in golden.clustered.iter().zip(&golden.summaries) {
        let ctx = with_scores(&sweep.scores);
        let result = rows(
            &ctx,
            "WITH summaries AS (
                SELECT unnest(summary_each(values ORDER BY task_index)) AS summary FROM scores)
            SELECT summary['count'] AS count, summary['sum'] AS sum, summary['mean'] AS mean,
                summary['std'] AS std FROM summaries",
        )
        .await;
        assert_eq!(result.num_rows(), summaries.len());
        let columns = ["count", "sum", "mean", "std"].map(|name| column(&result, name));
        for (position, expected) in summaries.iter().enumerate() {
            let [count, sum, mean, std] = columns.each_ref().map(|column| column[position]);
            assert_eq!(count, Some(expected.count));
            assert_close(sum.unwrap(), expected.sum, 1e-15, "sum");
            assert_close(mean.unwrap(), expected.mean, 1e-14, "mean");
            assert_close(std.unwrap(), expected.std.unwrap(), 1e-13, "std");
        }
    }
}

#[tokio::test]
async fn wilson_intervals_are_those_of_statsmodels() {
    let ctx = session(2);
    for (successes, trials, confidence, low, high) in golden().wilson {
        let sql = format!(
            "SELECT i['low'] AS low, i['high'] AS high
            FROM (SELECT wilson_interval({successes}, {trials}, {confidence}) AS i)"
        );
        let result = rows(&ctx, &sql).await;
        for (name, expected) in [("low", low), ("high", high)] {
            let value = first(&result, name);
            assert!(
                (value - expected).abs() <= 1e-14,
                "{sql}: {value}, not {expected}"
            );
        }
    }
}

#[tokio::test]
async fn mcnemar_tests_are_those_of_statsmodels() {
    let ctx = session(2);
    for (b, c, exact, statistic, asymptotic) in golden().mcnemar {
        let what = format!("{b} {c}");
        let p = number(&ctx, &format!("SELECT binomial_test_p({b}, {b} + {c})")).await;
        assert_close(p.unwrap(), exact, 1e-12, &what);
        let squared = format!("power({b} - {c}, 2) / cast({b} + {c} AS DOUBLE)");
        let value = number(&ctx, &format!("SELECT {squared}")).await;
        assert_close(value.unwrap(), statistic, 1e-15, &what);
        let p = number(&ctx, &format!("SELECT chi_squared_sf({squared}, 1)")).await;
        assert_close(p.unwrap(), asymptotic, 1e-12, &what);
    }
}

#[tokio::test]
async fn permutation_tests_are_those_of_scipy() {
    for golden in golden().permutation {
        let ctx = session(2);
        let places = integers(0..golden.x.len() as i64);
        register(
            &ctx,
            "pairs",
            vec![
                ("task_index", places),
                ("x", numbers(golden.x)),
                ("y", numbers(golden.y)),
            ],
        );
        let sql = "SELECT sign_flip_p(x - y, 200000, 7 ORDER BY task_index) FROM pairs";
        let p = number(&ctx, sql).await.unwrap();
        if golden.exact {
            assert_close(p, golden.p, 1e-14, "p");
        } else {
            // Both are drawn; five standard deviations of the difference of two such shares.
            let spread = (2.0 * golden.p * (1.0 - golden.p) / 200_000.0).sqrt();
            assert!(
                (p - golden.p).abs() < 5.0 * spread + 1e-5,
                "{p}, not {}",
                golden.p
            );
        }
    }
}

#[tokio::test]
async fn holm_correction_is_that_of_statsmodels() {
    for golden in golden().holm {
        let ctx = session(2);
        let places = integers(0..golden.p.len() as i64);
        register(
            &ctx,
            "tests",
            vec![("place", places), ("p", numbers(golden.p))],
        );
        let result = rows(
            &ctx,
            "WITH ranked AS (
                SELECT place, p, row_number() OVER (ORDER BY p, place) AS rank, count(*) OVER () AS tests
                FROM tests)
            SELECT place, least(1.0, max(p * (tests - rank + 1)) OVER (
                ORDER BY p, place ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)) AS adjusted
            FROM ranked ORDER BY place",
        )
        .await;
        let adjusted = column(&result, "adjusted");
        for (value, expected) in adjusted.iter().zip(&golden.adjusted) {
            assert_close(value.unwrap(), *expected, 1e-14, "adjusted");
        }
    }
}

#[tokio::test]
async fn distributions_are_those_of_scipy() {
    let ctx = session(1);
    let golden = golden().distributions;
    let mut calls: Vec<(String, f64)> = Vec::new();
    for (p, expected) in golden.normal_quantile {
        calls.push((format!("normal_quantile({p:e})"), expected));
    }
    for (p, df, expected) in golden.student_t_quantile {
        calls.push((format!("student_t_quantile({p:e}, {df})"), expected));
    }
    for (x, df, expected) in golden.chi_squared_sf {
        calls.push((format!("chi_squared_sf({x}, {df})"), expected));
    }
    for (successes, trials, expected) in golden.binomial_test_p {
        calls.push((format!("binomial_test_p({successes}, {trials})"), expected));
    }
    let mut wrong = String::new();
    for (call, expected) in calls {
        let value = number(&ctx, &format!("SELECT {call}")).await.unwrap();
        let error = (value - expected).abs() / expected.abs();
        if error > 1e-11 && (value - expected).abs() > 1e-15 {
            writeln!(wrong, "{call} = {value:e}, not {expected:e}: {error:.1e}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[tokio::test]
async fn bootstrap_intervals_are_those_of_scipy() {
    for golden in golden().bootstrap {
        let ctx = session(2);
        let places = integers(0..golden.numerator.len() as i64);
        register(
            &ctx,
            "tasks",
            vec![
                ("task_index", places),
                ("total", numbers(golden.numerator)),
                ("n", numbers(golden.denominator)),
            ],
        );
        let result = rows(
            &ctx,
            "SELECT i['low'] AS low, i['high'] AS high, i['std'] AS std FROM (
                SELECT bootstrap_interval(total, n, 0.95, 20000, 3 ORDER BY task_index) AS i FROM tasks)",
        )
        .await;
        // A quantile at 2.5 % of 20,000 normal draws has a standard error of 0.019 standard deviations,
        // their standard deviation one of 0.5 %.
        for (name, expected) in [("low", golden.low), ("high", golden.high)] {
            let value = first(&result, name);
            assert!(
                (value - expected).abs() < 0.08 * golden.std,
                "{name}: {value}, not {expected}"
            );
        }
        assert_close(first(&result, "std"), golden.std, 0.03, "std");
    }
}
