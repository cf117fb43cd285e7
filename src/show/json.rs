use std::io::Write;

use arrow::json::writer::{JsonArray, LineDelimited};
use arrow::json::{Writer, WriterBuilder};
use arrow::record_batch::RecordBatch;

use super::{RowSink, ShowError};

/// JSON: one array, or one object a line.
pub(super) enum JsonSink<'a> {
    Array(Writer<Box<dyn Write + Send + 'a>, JsonArray>),
    Lines(Writer<Box<dyn Write + Send + 'a>, LineDelimited>),
}

impl<'a> JsonSink<'a> {
    pub(super) fn array(output: Box<dyn Write + Send + 'a>) -> Self {
        Self::Array(WriterBuilder::new().with_explicit_nulls(true).build(output))
    }

    pub(super) fn lines(output: Box<dyn Write + Send + 'a>) -> Self {
        Self::Lines(WriterBuilder::new().with_explicit_nulls(true).build(output))
    }
}

impl RowSink for JsonSink<'_> {
    fn write(&mut self, rows: &RecordBatch) -> Result<(), ShowError> {
        match self {
            Self::Array(writer) => writer.write(rows)?,
            Self::Lines(writer) => writer.write(rows)?,
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), ShowError> {
        let mut output = match *self {
            Self::Array(mut writer) => {
                writer.finish()?;
                let mut output = writer.into_inner();
                output.write_all(b"\n")?;
                output
            }
            Self::Lines(mut writer) => {
                writer.finish()?;
                writer.into_inner()
            }
        };
        Ok(output.flush()?)
    }
}
