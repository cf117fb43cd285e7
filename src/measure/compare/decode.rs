use arrow::array::RecordBatch;
use arrow::json::LineDelimitedWriter;
use datafusion::error::DataFusionError;
use serde::de::DeserializeOwned;

use crate::measure::error::MeasureError;

/// The rows of a query, which are few. A null is a field that is not there.
pub(super) fn decode<T: DeserializeOwned>(batches: &[RecordBatch]) -> Result<Vec<T>, MeasureError> {
    let mut lines = Vec::new();
    let mut writer = LineDelimitedWriter::new(&mut lines);
    let batches: Vec<&RecordBatch> = batches.iter().collect();
    writer
        .write_batches(&batches)
        .and_then(|()| writer.finish())
        .map_err(|error| MeasureError::tables(DataFusionError::from(error)))?;
    serde_json::Deserializer::from_slice(&lines)
        .into_iter()
        .collect::<Result<_, _>>()
        .map_err(|error| MeasureError::tables(DataFusionError::External(Box::new(error))))
}
