//! The struct columns of intervals.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, NullBufferBuilder, StructArray};
use arrow::datatypes::{DataType, Field, Fields};
use datafusion::common::Result;

/// A struct of numbers with these names.
pub(super) fn struct_of(names: &[&str]) -> DataType {
    DataType::Struct(fields(names))
}

fn fields(names: &[&str]) -> Fields {
    let field = |name: &&str| Field::new(*name, DataType::Float64, true);
    names.iter().map(field).collect()
}

/// A column of structs of numbers, some of them null.
pub(super) fn structs<const N: usize>(
    names: [&str; N],
    rows: &[Option<[Option<f64>; N]>],
) -> Result<ArrayRef> {
    let column = |place: usize| -> ArrayRef {
        let of_row = |row: &Option<[Option<f64>; N]>| row.as_ref()?.get(place).copied().flatten();
        Arc::new(rows.iter().map(of_row).collect::<Float64Array>())
    };
    let mut valid = NullBufferBuilder::new(rows.len());
    rows.iter().for_each(|row| valid.append(row.is_some()));
    let columns = (0..N).map(column).collect();
    let structs = StructArray::try_new(fields(&names), columns, valid.finish())?;
    Ok(Arc::new(structs))
}
