//! The output formats of rows: a table for people, CSV, JSON and Parquet, each a [`RowSink`].

use std::io::Write;
use std::sync::Arc;

use arrow::array::{ArrayRef, StringArray};
use arrow::csv;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::json;
use arrow::json::writer::{JsonArray, JsonFormat, LineDelimited};
use arrow::record_batch::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow::util::pretty::pretty_format_batches_with_options;
use clap::ValueEnum;
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;

use super::text::count;
use crate::error::{FAILURE, Fatal};
use crate::store::plain_parquet;

/// A format of rows. Another one is a name here, a sink below, and a line of [`open_sink`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table for people
    Table,
    /// Comma-separated values with a header line
    Csv,
    /// One JSON array
    Json,
    /// One JSON object per line
    Ndjson,
    /// Parquet
    Parquet,
}

impl Format {
    /// Whether one output can hold several answers, one after another.
    pub fn holds_several(self) -> bool {
        self != Self::Parquet
    }

    /// The name on the command line.
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Takes the rows of a query, batch by batch.
pub trait RowSink {
    /// Writes rows.
    ///
    /// # Errors
    /// The output is full or gone, or a column has a type that the format cannot hold.
    fn write(&mut self, rows: &RecordBatch) -> Result<(), ShowError>;

    /// Whether it needs no more rows.
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
    /// A column has a type that the format cannot hold.
    #[error("cannot write the output: {0}")]
    Arrow(#[from] ArrowError),
    /// The Parquet file cannot be written.
    #[error("cannot write the output: {0}")]
    Parquet(#[from] ParquetError),
}

impl ShowError {
    /// Whether the reader of our output has gone, as `head` does. That is not a failure.
    pub fn is_broken_pipe(&self) -> bool {
        // Some writers keep only the text of the cause.
        let text = std::io::Error::from(std::io::ErrorKind::BrokenPipe).to_string();
        match self {
            // A terminal that was closed is an I/O error.
            Self::Io(error) => {
                error.kind() == std::io::ErrorKind::BrokenPipe
                    || error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
            }
            Self::Arrow(_) | Self::Parquet(_) => self.to_string().to_lowercase().contains(&text),
        }
    }
}

/// Opens a sink that writes to `output`. Only a table for people has a limit of rows.
///
/// # Errors
/// The schema has a type that the format cannot hold.
pub fn open_sink<'a>(
    format: Format,
    schema: &SchemaRef,
    output: Box<dyn Write + Send + 'a>,
    limit: RowLimit,
) -> Result<Box<dyn RowSink + 'a>, ShowError> {
    Ok(match format {
        Format::Table => Box::new(TableSink::new(schema, output, limit)),
        Format::Csv => Box::new(CsvSink::new(schema, output)?),
        Format::Json => Box::new(JsonSink::<JsonArray>::new(output, b"\n")),
        Format::Ndjson => Box::new(JsonSink::<LineDelimited>::new(output, b"")),
        Format::Parquet => Box::new(ParquetSink::new(schema, output)?),
    })
}

/// Rows that a table shows by default: a terminal has no use for more.
const MAX_ROWS: usize = 1000;

/// Rows of one table if all are wanted: its widths are known only when it is complete.
const BLOCK_ROWS: usize = 10_000;

/// How many rows a table shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowLimit {
    /// Rows; 0 for all, in several tables if they are many.
    pub rows: usize,
    /// How to get the others, for the line below a table that is not complete.
    pub hint: &'static str,
}

impl Default for RowLimit {
    fn default() -> Self {
        Self {
            rows: MAX_ROWS,
            hint: "--format csv, json, ndjson or parquet gives all",
        }
    }
}

/// A table for people. It needs all rows to know its widths, so their number is limited.
struct TableSink<'a> {
    schema: SchemaRef,
    output: Box<dyn Write + Send + 'a>,
    limit: RowLimit,
    held: Vec<RecordBatch>,
    num_held: usize,
    is_begun: bool,
    has_more: bool,
}

impl<'a> TableSink<'a> {
    fn new(schema: &SchemaRef, output: Box<dyn Write + Send + 'a>, limit: RowLimit) -> Self {
        Self {
            schema: SchemaRef::clone(schema),
            output,
            limit,
            held: Vec::new(),
            num_held: 0,
            is_begun: false,
            has_more: false,
        }
    }

    fn print(&mut self) -> Result<(), ShowError> {
        let options = FormatOptions::default().with_null("NULL");
        let table = pretty_format_batches_with_options(&self.held, &options)?;
        writeln!(self.output, "{table}")?;
        self.is_begun = true;
        self.held.clear();
        self.num_held = 0;
        Ok(())
    }
}

impl RowSink for TableSink<'_> {
    fn write(&mut self, rows: &RecordBatch) -> Result<(), ShowError> {
        let taken = match self.limit.rows {
            0 => rows.num_rows(),
            limit => rows.num_rows().min(limit - self.num_held),
        };
        self.has_more |= taken < rows.num_rows();
        if taken > 0 {
            self.num_held += taken;
            self.held.push(rows.slice(0, taken));
        }
        if self.limit.rows == 0 && self.num_held >= BLOCK_ROWS {
            self.print()?;
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.has_more
    }

    fn finish(mut self: Box<Self>) -> Result<(), ShowError> {
        if self.held.is_empty() && !self.is_begun {
            let none = RecordBatch::new_empty(SchemaRef::clone(&self.schema));
            self.held.push(none);
        }
        if !self.held.is_empty() {
            self.print()?;
        }
        if self.has_more {
            let rows = count(self.limit.rows as u64);
            let RowLimit { hint, .. } = self.limit;
            writeln!(self.output, "the first {rows} rows, there are more; {hint}")?;
        }
        Ok(self.output.flush()?)
    }
}

/// Comma-separated values. Nested columns become text.
struct CsvSink<'a> {
    writer: csv::Writer<Box<dyn Write + Send + 'a>>,
}

impl<'a> CsvSink<'a> {
    fn new(schema: &SchemaRef, output: Box<dyn Write + Send + 'a>) -> Result<Self, ShowError> {
        let mut sink = Self {
            writer: csv::WriterBuilder::new().with_header(true).build(output),
        };
        // Writes the header, even if no row follows.
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

/// JSON: one array, or one object per line.
struct JsonSink<'a, F: JsonFormat> {
    writer: json::Writer<Box<dyn Write + Send + 'a>, F>,
    /// What follows the last row.
    end: &'static [u8],
}

impl<'a, F: JsonFormat> JsonSink<'a, F> {
    fn new(output: Box<dyn Write + Send + 'a>, end: &'static [u8]) -> Self {
        let writer = json::WriterBuilder::new().with_explicit_nulls(true);
        Self {
            writer: writer.build(output),
            end,
        }
    }
}

impl<F: JsonFormat> RowSink for JsonSink<'_, F> {
    fn write(&mut self, rows: &RecordBatch) -> Result<(), ShowError> {
        Ok(self.writer.write(rows)?)
    }

    fn finish(mut self: Box<Self>) -> Result<(), ShowError> {
        self.writer.finish()?;
        let mut output = self.writer.into_inner();
        output.write_all(self.end)?;
        Ok(output.flush()?)
    }
}

struct ParquetSink<'a> {
    writer: ArrowWriter<Box<dyn Write + Send + 'a>>,
}

impl<'a> ParquetSink<'a> {
    fn new(schema: &SchemaRef, output: Box<dyn Write + Send + 'a>) -> Result<Self, ShowError> {
        let writer = plain_parquet(output, SchemaRef::clone(schema))?;
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

impl Fatal for ShowError {
    fn exit_code(&self) -> u8 {
        FAILURE
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;

    use super::*;

    fn shown(limit: usize, batches: &[i64]) -> (String, bool) {
        let batch = |rows: i64| {
            let numbers: ArrayRef = Arc::new((0..rows).collect::<Int64Array>());
            RecordBatch::try_from_iter([("n", numbers)]).unwrap()
        };
        let mut text = Vec::new();
        let limit = RowLimit {
            rows: limit,
            hint: "ask",
        };
        let mut sink = open_sink(
            Format::Table,
            &batch(0).schema(),
            Box::new(&mut text),
            limit,
        )
        .unwrap();
        for rows in batches {
            sink.write(&batch(*rows)).unwrap();
        }
        let is_full = sink.is_full();
        sink.finish().unwrap();
        (String::from_utf8(text).unwrap(), is_full)
    }

    #[test]
    fn a_table_says_that_there_are_more_rows_only_where_there_are() {
        let (text, is_full) = shown(3, &[2, 1]);
        assert!(!is_full && text.lines().count() == 7, "{text}");
        let (text, is_full) = shown(3, &[2, 2]);
        assert!(is_full && text.ends_with("the first 3 rows, there are more; ask\n"));
        assert_eq!(text.lines().count(), 8, "{text}");
    }

    #[test]
    fn all_rows_are_shown_in_tables_of_bounded_length() {
        let (text, is_full) = shown(0, &[6000, 6000, 6000]);
        let rows = text.lines().filter(|line| line.starts_with("| ")).count();
        assert!(!is_full);
        assert_eq!(rows, 18_000 + 2);
        assert_eq!(shown(0, &[]).0.lines().count(), 4);
    }
}
