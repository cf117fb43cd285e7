//! The scalar function `to_json`, by which a rule spells what it found.

use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch, StringArray};
use arrow::datatypes::DataType;
use arrow::json::writer::{JsonArray, WriterBuilder};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use serde_json::value::RawValue;

/// `to_json(value STRUCT) -> VARCHAR`: the JSON text of an object, with its nulls.
pub(super) fn to_json() -> ScalarUDF {
    ScalarUDF::from(ToJson {
        signature: Signature::any(1, Volatility::Immutable),
    })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ToJson {
    signature: Signature,
}

impl ScalarUDFImpl for ToJson {
    fn name(&self) -> &'static str {
        "to_json"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, given: &[DataType]) -> Result<DataType> {
        match given {
            [DataType::Struct(_)] => Ok(DataType::Utf8),
            _ => exec_err!("to_json takes one struct, as named_struct('name', value)"),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let columns = ColumnarValue::values_to_arrays(&args.args)?;
        let [column] = columns.as_slice() else {
            return exec_err!("to_json: {} columns instead of 1", columns.len());
        };
        let rows = RecordBatch::from(column.as_struct());
        let mut text = Vec::new();
        let writer = WriterBuilder::new().with_explicit_nulls(true);
        let mut writer = writer.build::<_, JsonArray>(&mut text);
        writer.write(&rows)?;
        writer.finish()?;
        drop(writer);
        let rows: Vec<&RawValue> = match text.as_slice() {
            // Without rows nothing is written.
            [] => Vec::new(),
            text => serde_json::from_slice(text)
                .map_err(|error| datafusion::error::DataFusionError::External(Box::new(error)))?,
        };
        let rows: StringArray = rows.iter().map(|row| Some(row.get())).collect();
        Ok(ColumnarValue::Array(Arc::new(rows)))
    }
}
