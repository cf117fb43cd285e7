use std::io::Write;

use ::parquet::errors::ParquetError;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;

use super::csv::CsvSink;
use super::json::JsonSink;
use super::parquet::ParquetSink;
use super::table::{RowLimit, TableSink};
use crate::error::{FAILURE, Fatal};

/// A form in which rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Table,
    /// Comma-separated, with a header.
    Csv,
    /// One JSON array.
    Json,
    /// One JSON object a line.
    Ndjson,
    /// A Parquet file.
    Parquet,
}

/// Takes the rows of a query, batch by batch.
pub trait RowSink {
    /// Writes rows.
    ///
    /// # Errors
    /// The output is full or gone, or a column has a type that the form can't hold.
    fn write(&mut self, rows: &RecordBatch) -> Result<(), ShowError>;

    /// Whether it has no use for more rows.
    fn is_full(&self) -> bool {
        false
    }

    /// Writes what comes after the last row.
    ///
    /// # Errors
    /// The output is full or gone.
    fn finish(self: Box<Self>) -> Result<(), ShowError>;
}

/// Why rows could not be shown.
#[derive(Debug, thiserror::Error)]
pub enum ShowError {
    /// The output is full or gone.
    #[error("cannot write the output: {0}")]
    Io(#[from] std::io::Error),
    /// A column does not fit.
    #[error("cannot write the output: {0}")]
    Arrow(#[from] ArrowError),
    /// Parquet refused.
    #[error("cannot write the output: {0}")]
    Parquet(#[from] ParquetError),
}

impl Fatal for ShowError {
    fn exit_code(&self) -> u8 {
        FAILURE
    }
}

impl ShowError {
    /// The reader of our output has gone, as `head` does: no failure.
    pub fn is_broken_pipe(&self) -> bool {
        // Some writers keep no more of the cause than its text.
        let text = std::io::Error::from(std::io::ErrorKind::BrokenPipe).to_string();
        match self {
            // A terminal that was closed is an error of input and output.
            Self::Io(error) => {
                error.kind() == std::io::ErrorKind::BrokenPipe
                    || error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
            }
            Self::Arrow(_) | Self::Parquet(_) => self.to_string().to_lowercase().contains(&text),
        }
    }
}

/// A sink that writes to `output`.
///
/// # Errors
/// The schema has a type that the form can't hold.
pub fn open_sink<'a>(
    format: Format,
    schema: &SchemaRef,
    output: Box<dyn Write + Send + 'a>,
) -> Result<Box<dyn RowSink + 'a>, ShowError> {
    Ok(match format {
        Format::Table => open_table(schema, output, RowLimit::default()),
        Format::Csv => Box::new(CsvSink::new(schema, output)?),
        Format::Json => Box::new(JsonSink::array(output)),
        Format::Ndjson => Box::new(JsonSink::lines(output)),
        Format::Parquet => Box::new(ParquetSink::new(schema, output)?),
    })
}

/// A sink for people that shows no more rows than it is told to.
pub fn open_table<'a>(
    schema: &SchemaRef,
    output: Box<dyn Write + Send + 'a>,
    limit: RowLimit,
) -> Box<dyn RowSink + 'a> {
    Box::new(TableSink::new(schema, output, limit))
}
