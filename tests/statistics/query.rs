//! SQL in a session that has the functions.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, Int64Array, ListArray, RecordBatch};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, Float64Type};
use datafusion::common::Result;
use datafusion::datasource::MemTable;
use datafusion::prelude::{SessionConfig, SessionContext};
use rollstream::measure::functions;

/// A session with the functions.
pub fn session(partitions: usize) -> SessionContext {
    let config = SessionConfig::new().with_target_partitions(partitions);
    let ctx = SessionContext::new_with_config(config);
    functions::register(&ctx);
    ctx
}

/// Makes columns a table.
pub fn register(ctx: &SessionContext, name: &str, columns: Vec<(&str, ArrayRef)>) {
    let batch = RecordBatch::try_from_iter_with_nullable(
        columns
            .into_iter()
            .map(|(name, column)| (name, column, true)),
    );
    register_parts(ctx, name, vec![vec![batch.unwrap()]]);
}

/// Makes batches a table, a partition for each list.
pub fn register_parts(ctx: &SessionContext, name: &str, parts: Vec<Vec<RecordBatch>>) {
    let schema = parts[0][0].schema();
    let table = MemTable::try_new(schema, parts).unwrap();
    ctx.register_table(name, Arc::new(table)).unwrap();
}

pub fn numbers(values: impl IntoIterator<Item = f64>) -> ArrayRef {
    Arc::new(Float64Array::from_iter_values(values))
}

pub fn integers(values: impl IntoIterator<Item = i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(values))
}

/// A column of lists of scores.
pub fn lists(rows: &[Vec<Option<f64>>]) -> ArrayRef {
    let rows = rows.iter().map(|row| Some(row.clone()));
    Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>(rows))
}

/// The rows that a query gives.
pub async fn rows(ctx: &SessionContext, sql: &str) -> RecordBatch {
    try_rows(ctx, sql)
        .await
        .unwrap_or_else(|e| panic!("{sql}: {e}"))
}

pub async fn try_rows(ctx: &SessionContext, sql: &str) -> Result<RecordBatch> {
    let batches = ctx.sql(sql).await?.collect().await?;
    let schema = batches.first().map(RecordBatch::schema);
    let schema = schema.unwrap_or_else(|| Arc::new(arrow::datatypes::Schema::empty()));
    Ok(concat_batches(&schema, &batches)?)
}

/// A column of a result as numbers.
pub fn column(rows: &RecordBatch, name: &str) -> Vec<Option<f64>> {
    let column = rows
        .column_by_name(name)
        .unwrap_or_else(|| panic!("no column {name}"));
    let column = cast(column, &DataType::Float64).unwrap();
    column.as_primitive::<Float64Type>().iter().collect()
}

/// The number in the first row of a column.
pub fn first(rows: &RecordBatch, name: &str) -> f64 {
    column(rows, name)[0].unwrap_or_else(|| panic!("{name} is null"))
}

/// The list in the first column and row.
pub async fn list(ctx: &SessionContext, sql: &str) -> Option<Vec<Option<f64>>> {
    let rows = rows(ctx, sql).await;
    let lists = rows.column(0).as_list::<i32>();
    lists.is_valid(0).then(|| {
        let items = lists.value(0);
        items.as_primitive::<Float64Type>().iter().collect()
    })
}

/// The number in the first column and row.
pub async fn number(ctx: &SessionContext, sql: &str) -> Option<f64> {
    let rows = rows(ctx, sql).await;
    let name = rows.schema().field(0).name().clone();
    column(&rows, &name)[0]
}

#[track_caller]
pub fn assert_close(value: f64, expected: f64, relative: f64, what: &str) {
    let close = (value - expected).abs() <= relative * expected.abs() || value == expected;
    assert!(close, "{what}: {value}, not {expected}");
}
