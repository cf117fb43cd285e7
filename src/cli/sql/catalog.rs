//! The tables of a session, as tables themselves.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, StringArray};
use arrow::datatypes::DataType;
use arrow::record_batch::RecordBatch;
use datafusion::common::TableReference;
use datafusion::dataframe::DataFrame;

use super::session::SqlSession;
use crate::error::Error;

const TABLES: &str = include_str!("../../../queries/sql/tables.sql");

/// Every table: its name, kind and number of columns.
pub(super) async fn tables(session: &SqlSession) -> Result<DataFrame, Error> {
    session.plan(TABLES).await
}

/// The columns of a table, whose name is as SQL would have it.
///
/// # Errors
/// There is no such table.
pub(super) async fn columns(session: &SqlSession, table: &str) -> Result<DataFrame, Error> {
    let context = session.context();
    let provider = context.table_provider(TableReference::parse_str(table));
    let schema = provider
        .await
        .map_err(|_| Error::Usage(format!("there is no table '{table}'; \\d lists them")))?
        .schema();
    let fields = schema.fields();
    let names: StringArray = fields.iter().map(|field| Some(field.name())).collect();
    let types: StringArray = fields
        .iter()
        .map(|field| Some(type_name(field.data_type())))
        .collect();
    let nullable: BooleanArray = fields
        .iter()
        .map(|field| Some(field.is_nullable()))
        .collect();
    let columns: [(&str, ArrayRef); 3] = [
        ("column", Arc::new(names)),
        ("type", Arc::new(types)),
        ("nullable", Arc::new(nullable)),
    ];
    let batch = RecordBatch::try_from_iter(columns).map_err(Error::defect)?;
    Ok(context.read_batch(batch)?)
}

/// A type in few words: of a map its keys and values matter, not how it is laid out.
fn type_name(of: &DataType) -> String {
    match of {
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(fields) => {
                let types: Vec<String> = fields
                    .iter()
                    .map(|field| type_name(field.data_type()))
                    .collect();
                format!("Map({})", types.join(", "))
            }
            _ => of.to_string(),
        },
        _ => of.to_string(),
    }
}
