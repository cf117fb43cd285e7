//! The functions as queries see them, however rows are split and merged.

use arrow::util::pretty::pretty_format_batches;
use datafusion::prelude::SessionContext;

async fn shown(sql: &str) -> String {
    let ctx = SessionContext::new();
    super::register(&ctx);
    let batches = ctx.sql(sql).await.unwrap().collect().await.unwrap();
    pretty_format_batches(&batches).unwrap().to_string()
}

#[tokio::test]
async fn statistics_pass_over_what_is_missing() {
    let sql = "SELECT s['count'] AS n, s['mean'] AS mean, s['max'] AS max, s['min'] AS min, s['median'] AS median, \
               s['std'] AS std FROM (SELECT list_statistics(v) AS s FROM (VALUES ([1.0, NULL, 4.0, 2.5]), ([NULL]), \
               ([7.0])) AS t(v)) AS u";
    insta::assert_snapshot!(shown(sql).await, @r"
    +---+------+-----+-----+--------+-----+
    | n | mean | max | min | median | std |
    +---+------+-----+-----+--------+-----+
    | 3 | 2.5  | 4.0 | 1.0 | 2.5    | 1.5 |
    | 0 |      |     |     |        |     |
    | 1 | 7.0  | 7.0 | 7.0 | 7.0    |     |
    +---+------+-----+-----+--------+-----+
    ");
}

#[tokio::test]
async fn an_array_in_parts_is_the_array() {
    let sql = "SELECT statistics(v, start, 6) = first_value(list_statistics([0.1, 0.2, NULL, NULL, 0.3, 0.7])) AS same \
               FROM (VALUES ([0.3, 0.7], 4), ([0.1, 0.2], 0)) AS t(v, start)";
    insta::assert_snapshot!(shown(sql).await, @r"
    +------+
    | same |
    +------+
    | true |
    +------+
    ");
    let ctx = SessionContext::new();
    super::register(&ctx);
    let outside = ctx.sql("SELECT statistics([1.0], 3, 3)").await.unwrap();
    let error = outside.collect().await.unwrap_err().to_string();
    assert!(
        error.contains("a list of 1 at 3 is outside an array of 3"),
        "{error}"
    );
}
