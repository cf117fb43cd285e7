//! The tables of a session, as tables themselves.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, StringArray, UInt64Array};
use arrow::datatypes::DataType;
use arrow::record_batch::RecordBatch;
use datafusion::common::TableReference;
use datafusion::dataframe::DataFrame;

use super::session::SqlSession;
use crate::error::Error;

/// Every table, those of the default schema first: its name, its kind and the number of its columns,
/// which is not known of a metric family that is no valid SQL.
pub(super) async fn tables(session: &SqlSession) -> Result<DataFrame, Error> {
    let context = session.context();
    let options = context.state().config().options().catalog.clone();
    let catalog = context.catalog(&options.default_catalog);
    let catalog = catalog.ok_or_else(|| Error::defect("there is no catalog"))?;
    let mut rows = Vec::new();
    for schema in catalog.schema_names() {
        let is_default = schema == options.default_schema;
        let is_engines_own = schema == "information_schema";
        let Some(tables) = catalog.schema(&schema).filter(|_| !is_engines_own) else {
            continue;
        };
        for table in tables.table_names() {
            let columns = match tables.table(&table).await {
                Ok(table) => table.map(|table| table.schema().fields().len() as u64),
                Err(_) => None,
            };
            let kind = match session.metrics().has(&table) {
                true => "metric",
                false => "view",
            };
            let name = match is_default {
                true => table,
                false => format!("{schema}.{table}"),
            };
            rows.push((!is_default, name, kind, columns));
        }
    }
    rows.sort();
    let names: StringArray = rows.iter().map(|(_, name, ..)| Some(name)).collect();
    let kinds: StringArray = rows.iter().map(|(_, _, kind, _)| Some(kind)).collect();
    let columns: UInt64Array = rows.iter().map(|(.., columns)| *columns).collect();
    let columns: [(&str, ArrayRef); 3] = [
        ("name", Arc::new(names)),
        ("kind", Arc::new(kinds)),
        ("columns", Arc::new(columns)),
    ];
    let batch = RecordBatch::try_from_iter(columns).map_err(Error::defect)?;
    Ok(context.read_batch(batch)?)
}

/// The columns of a table, whose name is as SQL would have it.
///
/// # Errors
/// There is no such table.
pub(super) async fn columns(session: &SqlSession, table: &str) -> Result<DataFrame, Error> {
    let context = session.context();
    let name = TableReference::parse_str(table);
    if !context.table_exist(name.clone())? {
        return Err(Error::Usage(format!(
            "there is no table '{table}'; \\d lists them"
        )));
    }
    let schema = context.table_provider(name).await?.schema();
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
