//! How aggregate functions are called: constants, nulls, empty groups, filters, windows.

use crate::query::{column, first, number, rows, session, try_rows};

const TASKS: &str =
    "(VALUES (3, 1.0, 2.0), (1, 2.0, 2.0), (2, null, 2.0), (4, 0.0, 2.0)) AS t(i, a, b)";

#[tokio::test]
async fn what_must_be_constant_is_refused_otherwise() {
    let ctx = session(2);
    for (call, part) in [
        (
            "bootstrap_interval(a, b, 0.95, i, 1)",
            "resamples must be a constant",
        ),
        ("bootstrap_interval(a, b, 95, 100, 1)", "confidence = 95"),
        ("bootstrap_interval(a, b, 0.95, 0, 1)", "resamples = 0"),
        (
            "bootstrap_interval(a, b, 0.95, 100, null)",
            "seed must be a constant",
        ),
        ("sign_flip_p(a, 0, 1)", "permutations = 0"),
        ("sign_flip_p(a, 10, i)", "seed must be a constant"),
        ("sign_flip_p('x', 10, 1)", "difference is"),
        ("exact_sum(a, b)", "takes 1 arguments, not 2"),
        ("exact_sum(DISTINCT a), exact_sum(b)", "DISTINCT"),
    ] {
        let error = try_rows(&ctx, &format!("SELECT {call} FROM {TASKS}"))
            .await
            .unwrap_err();
        assert!(error.to_string().contains(part), "{call}: {error}");
    }
}

#[tokio::test]
async fn nulls_are_passed_over_and_nothing_is_null() {
    let ctx = session(2);
    for (call, expected) in [
        ("exact_sum(a)", Some(3.0)),
        ("summary_each([a] ORDER BY i)[1]['sum']", Some(3.0)),
        ("exact_sum(a) FILTER (WHERE i < 3)", Some(2.0)),
        ("exact_sum(a) FILTER (WHERE i > 9)", None),
        ("sign_flip_p(a, 10, 1) FILTER (WHERE i > 9)", None),
        ("sign_flip_p(a, 10, 1) FILTER (WHERE i = 4)", Some(1.0)),
        ("sign_flip_p(a, 10, 1 ORDER BY i)", Some(0.5)),
        (
            "bootstrap_interval(a, b, 0.9, 50, 1) FILTER (WHERE i > 9)['low']",
            None,
        ),
        ("array_length(summary_each([a, b] ORDER BY i))", Some(2.0)),
        ("array_length(summary_each([a]) FILTER (WHERE i > 9))", None),
        ("summary_each([a, b] ORDER BY i)[1]['count']", Some(3.0)),
        ("summary_each([a, b] ORDER BY i)[1]['std']", Some(1.0)),
        (
            "summary_each([a]) FILTER (WHERE i = 2)[1]['count']",
            Some(0.0),
        ),
        ("summary_each([a]) FILTER (WHERE i = 2)[1]['sum']", None),
    ] {
        let (call, field) = match call.split_once(")[") {
            Some((call, field)) => (format!("{call})"), format!("[{field}")),
            None => (call.to_owned(), String::new()),
        };
        let sql =
            format!("SELECT value{field} AS value FROM (SELECT {call} AS value FROM {TASKS})");
        let sql = if call.starts_with("array_length") {
            format!("SELECT {call} FROM {TASKS}")
        } else {
            sql
        };
        assert_eq!(number(&ctx, &sql).await, expected, "{sql}");
    }
}

#[tokio::test]
async fn a_bootstrap_of_equal_clusters_is_exact() {
    let ctx = session(2);
    let sql = "SELECT i['low'] AS low, i['high'] AS high, i['std'] AS std FROM (
        SELECT bootstrap_interval(0.3, 1, 0.95, 100, 5) AS i FROM generate_series(1, 10))";
    let result = rows(&ctx, sql).await;
    for (name, expected) in [("low", 0.3), ("high", 0.3), ("std", 0.0)] {
        assert!((first(&result, name) - expected).abs() < 1e-15, "{name}");
    }
}

#[tokio::test]
async fn windows_see_every_frame() {
    let ctx = session(1);
    let sql = "SELECT exact_sum(a) OVER (ORDER BY i) AS exact, summary_each([a]) OVER (ORDER BY i)[1]['sum'] AS sum,
            sign_flip_p(a, 10, 1) OVER (ORDER BY i) AS p
        FROM (VALUES (1, 0.5), (2, 0.25), (3, 1.0)) AS t(i, a)";
    let result = rows(&ctx, sql).await;
    let sums = vec![Some(0.5), Some(0.75), Some(1.75)];
    assert_eq!(column(&result, "exact"), sums);
    assert_eq!(column(&result, "sum"), sums);
    assert_eq!(column(&result, "p"), [Some(1.0), Some(0.5), Some(0.25)]);
}
