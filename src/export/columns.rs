//! The columns of a query's batches by name.

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringViewArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use arrow::record_batch::RecordBatch;
use datafusion::common::{Result, exec_datafusion_err};

fn column(batch: &RecordBatch, name: &str, to: &DataType) -> Result<ArrayRef> {
    let column = batch.column_by_name(name);
    let column =
        column.ok_or_else(|| exec_datafusion_err!("the query gives no column '{name}'"))?;
    Ok(cast(column, to)?)
}

pub(super) fn integers(batch: &RecordBatch, name: &str) -> Result<Int64Array> {
    let column = column(batch, name, &DataType::Int64)?;
    Ok(column.as_primitive().clone())
}

pub(super) fn texts(batch: &RecordBatch, name: &str) -> Result<StringViewArray> {
    let column = column(batch, name, &DataType::Utf8View)?;
    Ok(column.as_string_view().clone())
}

/// The value in a row, zero where there is none.
pub(super) fn at(column: &Int64Array, row: usize) -> i64 {
    match row < column.len() && column.is_valid(row) {
        true => column.value(row),
        false => 0,
    }
}
