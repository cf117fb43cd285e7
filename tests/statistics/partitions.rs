//! Aggregates over rows that are split over partitions and batches in any way.

use arrow::array::RecordBatch;
use datafusion::prelude::SessionContext;
use proptest::prelude::*;

use crate::query::{column, integers, lists, number, numbers, register_parts, rows, session};

/// Scores whose sum depends on the order in which they are added.
fn scores(count: usize) -> Vec<f64> {
    let mut random = fastrand::Rng::with_seed(5);
    (0..count)
        .map(|i| (random.f64() - 0.3) * 10f64.powi((i % 9) as i32))
        .collect()
}

/// A table `t` of rows `(i, agent, value, list)` in this order, cut into batches that are dealt to partitions.
fn table(ctx: &SessionContext, order: &[usize], values: &[f64], batch: usize, partitions: usize) {
    let mut parts: Vec<Vec<RecordBatch>> = vec![Vec::new(); partitions];
    for (place, chunk) in order.chunks(batch).enumerate() {
        let value = |i: &usize| values[*i];
        let list = |i: &usize| {
            let short = (!i.is_multiple_of(3)).then_some(vec![Some(values[*i] * 0.1), None]);
            let mut list = vec![Some(values[*i])];
            list.extend(short.into_iter().flatten());
            list
        };
        let columns = vec![
            ("i", integers(chunk.iter().map(|i| *i as i64))),
            ("agent", integers(chunk.iter().map(|i| (*i % 2) as i64))),
            ("value", numbers(chunk.iter().map(value))),
            ("list", lists(&chunk.iter().map(list).collect::<Vec<_>>())),
        ];
        parts[place % partitions].push(RecordBatch::try_from_iter(columns).unwrap());
    }
    parts.retain(|part| !part.is_empty());
    register_parts(ctx, "t", parts);
}

const SQL: &str =
    "SELECT agent, exact_sum(value) AS exact, summary_each([value] ORDER BY i)[1]['sum'] AS sum,
        sign_flip_p(value, 300, 4 ORDER BY i) AS p,
        bootstrap_interval(value, 1, 0.9, 50, 4 ORDER BY i)['low'] AS low,
        summary_each(list ORDER BY i)[1]['sum'] AS first_sum,
        summary_each(list ORDER BY i)[2]['mean'] AS second_mean,
        summary_each(list ORDER BY i)[1]['std'] AS std,
        array_length(summary_each(list ORDER BY i)) AS length
    FROM t GROUP BY agent ORDER BY agent";

fn of(order: &[usize], values: &[f64], batch: usize, partitions: usize, sql: &str) -> RecordBatch {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    let ctx = session(partitions);
    table(&ctx, order, values, batch, partitions);
    runtime.block_on(rows(&ctx, sql))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn neither_order_nor_partitions_of_rows_matter(
        order in Just((0..200).collect::<Vec<usize>>()).prop_shuffle(),
        batch in 1usize..90,
        partitions in 1usize..5,
    ) {
        let values = scores(200);
        let in_order: Vec<usize> = (0..200).collect();
        let expected = of(&in_order, &values, 1000, 1, SQL);
        let result = of(&order, &values, batch, partitions, SQL);
        for name in ["agent", "exact", "sum", "p", "low", "first_sum", "second_mean", "length"] {
            prop_assert_eq!(column(&result, name), column(&expected, name), "{}", name);
        }
        for (std, expected) in column(&result, "std").into_iter().zip(column(&expected, "std")) {
            let (std, expected) = (std.unwrap(), expected.unwrap());
            prop_assert!((std - expected).abs() <= 1e-14 * expected, "{} {}", std, expected);
        }
    }
}

#[test]
fn aggregates_in_one_query_with_two_orders_are_refused_not_wrong() {
    let values = scores(20);
    let order: Vec<usize> = (0..20).collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let ctx = session(2);
    table(&ctx, &order, &values, 5, 2);
    let sql =
        "SELECT summary_each([value] ORDER BY i), summary_each([value] ORDER BY value) FROM t";
    let error = runtime
        .block_on(crate::query::try_rows(&ctx, sql))
        .unwrap_err();
    assert!(
        error.to_string().contains("Conflicting ordering"),
        "{error}"
    );
    let sum = runtime.block_on(number(
        &ctx,
        "SELECT summary_each([value] ORDER BY i)[1]['sum'] FROM t",
    ));
    assert_eq!(sum, Some(python_sum(&values)));
}

fn python_sum(values: &[f64]) -> f64 {
    let (mut sum, mut errors) = (0.0f64, 0.0f64);
    for &value in values {
        let total = sum + value;
        errors += if sum.abs() >= value.abs() {
            (sum - total) + value
        } else {
            (value - total) + sum
        };
        sum = total;
    }
    sum + errors
}
