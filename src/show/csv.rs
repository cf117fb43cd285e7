use std::io::Write;
use std::sync::Arc;

use arrow::array::{ArrayRef, StringArray};
use arrow::csv::{Writer, WriterBuilder};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};

use super::{RowSink, ShowError};

/// Comma-separated values. Nested columns are written as text.
pub(super) struct CsvSink<'a> {
    writer: Writer<Box<dyn Write + Send + 'a>>,
}

impl<'a> CsvSink<'a> {
    pub(super) fn new(
        schema: &SchemaRef,
        output: Box<dyn Write + Send + 'a>,
    ) -> Result<Self, ShowError> {
        let mut sink = Self {
            writer: WriterBuilder::new().with_header(true).build(output),
        };
        // The header, also where no row follows.
        sink.write(&RecordBatch::new_empty(SchemaRef::clone(schema)))?;
        Ok(sink)
    }
}

impl RowSink for CsvSink<'_> {
    fn write(&mut self, rows: &RecordBatch) -> Result<(), ShowError> {
        let columns: Result<Vec<(&str, ArrayRef)>, ShowError> = rows
            .schema_ref()
            .fields()
            .iter()
            .zip(rows.columns())
            .map(|(field, column)| Ok((field.name().as_str(), flat(column)?)))
            .collect();
        let flat = RecordBatch::try_from_iter_with_nullable(
            columns?
                .into_iter()
                .map(|(name, column)| (name, column, true)),
        )?;
        Ok(self.writer.write(&flat)?)
    }

    fn finish(self: Box<Self>) -> Result<(), ShowError> {
        Ok(self.writer.into_inner().flush()?)
    }
}

fn flat(column: &ArrayRef) -> Result<ArrayRef, ShowError> {
    if !column.data_type().is_nested() {
        return Ok(Arc::clone(column));
    }
    let options = FormatOptions::default();
    let formatter = ArrayFormatter::try_new(column, &options)?;
    let text = (0..column.len()).map(|row| {
        column
            .is_valid(row)
            .then(|| formatter.value(row).to_string())
    });
    Ok(Arc::new(text.collect::<StringArray>()))
}
