use std::io::Write;

use ::parquet::arrow::ArrowWriter;
use ::parquet::arrow::arrow_writer::ArrowWriterOptions;
use ::parquet::basic::{Compression, ZstdLevel};
use ::parquet::file::properties::WriterProperties;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;

use super::{RowSink, ShowError};

/// A Parquet file.
pub(super) struct ParquetSink<'a> {
    writer: ArrowWriter<Box<dyn Write + Send + 'a>>,
}

impl<'a> ParquetSink<'a> {
    pub(super) fn new(
        schema: &SchemaRef,
        output: Box<dyn Write + Send + 'a>,
    ) -> Result<Self, ShowError> {
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .build();
        let options = ArrowWriterOptions::new()
            .with_properties(properties)
            .with_skip_arrow_metadata(true);
        let writer = ArrowWriter::try_new_with_options(output, SchemaRef::clone(schema), options)?;
        Ok(Self { writer })
    }
}

impl RowSink for ParquetSink<'_> {
    fn write(&mut self, rows: &RecordBatch) -> Result<(), ShowError> {
        Ok(self.writer.write(rows)?)
    }

    fn finish(self: Box<Self>) -> Result<(), ShowError> {
        Ok(self.writer.into_inner()?.flush()?)
    }
}
