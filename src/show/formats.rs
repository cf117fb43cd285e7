//! The output formats of rows: a table for people, CSV, JSON and Parquet, each a [`RowSink`].

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, StringArray};
use arrow::compute::concat_batches;
use arrow::csv;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::json;
use arrow::json::writer::{JsonArray, JsonFormat, LineDelimited};
use arrow::record_batch::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow::util::pretty::pretty_format_batches_with_options;
use clap::ValueEnum;
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;

use super::text::{count, cut, one_line, visible_lines, wrapped};
use crate::error::{FAILURE, Fatal};
use crate::store::plain_parquet;

/// A format of rows. Another one is a name here, a sink below, and a line of [`open_sink`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table for people
    Table,
    /// One row at a time, with a line for each column
    Record,
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

    /// The format that the extension of a file's name tells.
    pub fn of_file(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "csv" => Some(Self::Csv),
            "json" => Some(Self::Json),
            "jsonl" | "ndjson" => Some(Self::Ndjson),
            "parquet" => Some(Self::Parquet),
            _ => None,
        }
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

/// Opens a sink that writes to `output`. Only the formats for people have a limit of rows.
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
        Format::Record => Box::new(RecordSink::new(output, limit)),
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

/// Rows that a terminal shows by default.
const TERMINAL_ROWS: usize = 40;

/// How much of an answer people see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowLimit {
    /// Rows; 0 for all, in several tables if they are many.
    pub rows: usize,
    /// Columns of the terminal that a table must fit; none if it may have any width.
    pub width: Option<usize>,
    /// How to get the rest, for the line below what is not complete.
    pub hint: &'static str,
}

impl RowLimit {
    /// The limit on a terminal of `width` columns.
    pub fn of_terminal(width: usize) -> Self {
        Self {
            rows: TERMINAL_ROWS,
            width: Some(width),
            hint: "--format record shows whole rows, --format csv all of them",
        }
    }

    /// Returns how many of `rows` more rows are shown.
    fn take(&self, shown: usize, rows: usize) -> usize {
        match self.rows {
            0 => rows,
            limit => rows.min(limit.saturating_sub(shown)),
        }
    }
}

impl Default for RowLimit {
    fn default() -> Self {
        Self {
            rows: MAX_ROWS,
            width: None,
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
    /// The number of columns that are shown, if not all are.
    first_columns: Option<usize>,
    /// Whether a value was cut.
    is_cut: bool,
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
            first_columns: None,
            is_cut: false,
        }
    }

    fn print(&mut self) -> Result<(), ShowError> {
        let options = FormatOptions::default().with_null("NULL");
        if let Some(width) = self.limit.width {
            self.fit(width, &options)?;
        }
        let table = pretty_format_batches_with_options(&self.held, &options)?;
        writeln!(self.output, "{}", visible_lines(&table.to_string()))?;
        self.is_begun = true;
        self.held.clear();
        self.num_held = 0;
        Ok(())
    }

    /// Replaces the rows by texts that fit a terminal: long ones are cut, and columns without room left out.
    fn fit(&mut self, width: usize, options: &FormatOptions<'_>) -> Result<(), ShowError> {
        let rows = concat_batches(&self.schema, &self.held)?;
        let mut columns = Vec::new();
        for (field, column) in self.schema.fields().iter().zip(rows.columns()) {
            let formatter = ArrayFormatter::try_new(column, options)?;
            let cells = (0..column.len()).map(|row| one_line(&formatter.value(row).to_string()));
            columns.push((one_line(field.name()), cells.collect::<Vec<String>>()));
        }
        let widths: Vec<Widths> = columns.iter().map(Widths::of).collect();
        let fits = |shown: usize, most: usize| {
            let shown = widths.iter().take(shown);
            // A column takes three more for its border, and the last border one.
            shown.map(|column| column.cut(most) + 3).sum::<usize>() < width
        };
        let all = columns.len();
        let shown = (1..=all).rev().find(|shown| fits(*shown, 0));
        let shown = shown.unwrap_or(1);
        // What is left is for the longest values; a lone column that does not fit is cut to the terminal.
        let most = (0..=width).rev().find(|most| fits(shown, *most));
        let most = most.unwrap_or(width.saturating_sub(4).max(1));
        self.first_columns = (shown < all).then_some(shown).or(self.first_columns);
        let mut fitted = Vec::new();
        let mut fields = Vec::new();
        for ((name, cells), column) in columns.into_iter().zip(&widths).take(shown) {
            let room = column.cut(most).min(width.saturating_sub(4).max(1));
            let values = cells.iter().map(|cell| Some(cut(cell, room)));
            let values = values.collect::<StringArray>();
            self.is_cut |= values.iter().flatten().ne(&cells);
            fitted.push(Arc::new(values) as ArrayRef);
            fields.push(Field::new(header(&name, room), DataType::Utf8, true));
        }
        let schema = Arc::new(Schema::new(fields));
        self.held = vec![RecordBatch::try_new(schema, fitted)?];
        Ok(())
    }
}

/// The width to which every value may be cut before columns are left out.
const LEAST_WIDTH: usize = 16;

/// The widths of a column in characters.
struct Widths {
    /// Below it, words of the name or too much of the values are cut.
    least: usize,
    widest: usize,
}

impl Widths {
    fn of((name, cells): &(String, Vec<String>)) -> Self {
        let length = |text: &str| text.chars().count();
        let cells = cells.iter().map(|cell| length(cell)).max();
        let cells = cells.unwrap_or_default();
        let words = name.split_inclusive('_').map(length).max();
        Self {
            least: cells.min(LEAST_WIDTH).max(words.unwrap_or_default()),
            widest: cells.max(length(name)),
        }
    }

    /// Returns the width if the column is cut to `most` characters.
    fn cut(&self, most: usize) -> usize {
        self.widest.min(most.max(self.least))
    }
}

/// Breaks the name of a column between its words.
fn header(name: &str, width: usize) -> String {
    let (mut lines, mut used) = (String::new(), 0);
    for word in name.split_inclusive('_') {
        let length = word.chars().count();
        if used > 0 && used + length > width {
            lines.push('\n');
            used = 0;
        }
        lines.push_str(&cut(word, width));
        used += length;
    }
    lines
}

impl RowSink for TableSink<'_> {
    fn write(&mut self, rows: &RecordBatch) -> Result<(), ShowError> {
        let taken = self.limit.take(self.num_held, rows.num_rows());
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
        let rows = self.has_more.then(|| first_rows(&self.limit));
        let columns = self.first_columns.map(|shown| {
            let all = self.schema.fields().len();
            format!("the first {shown} of {all} columns")
        });
        let cut = self.is_cut.then(|| "long values are cut".to_owned());
        let left_out: Vec<String> = [rows, columns, cut].into_iter().flatten().collect();
        if !left_out.is_empty() {
            let note = format!("{}; {}", left_out.join(", "), self.limit.hint);
            writeln!(self.output, "{}", wrapped(&note, 2, self.limit.width))?;
        }
        Ok(self.output.flush()?)
    }
}

fn first_rows(limit: &RowLimit) -> String {
    let rows = count(limit.rows as u64);
    format!("the first {rows} rows, there are more")
}

/// One row at a time: a line with its number, then one for each column, with the whole value.
struct RecordSink<'a> {
    output: Box<dyn Write + Send + 'a>,
    limit: RowLimit,
    num_shown: usize,
    has_more: bool,
}

impl<'a> RecordSink<'a> {
    fn new(output: Box<dyn Write + Send + 'a>, limit: RowLimit) -> Self {
        Self {
            output,
            limit,
            num_shown: 0,
            has_more: false,
        }
    }
}

impl RowSink for RecordSink<'_> {
    fn write(&mut self, rows: &RecordBatch) -> Result<(), ShowError> {
        let taken = self.limit.take(self.num_shown, rows.num_rows());
        self.has_more |= taken < rows.num_rows();
        let options = FormatOptions::default().with_null("NULL");
        let schema = rows.schema_ref();
        let names = schema.fields().iter().map(|field| one_line(field.name()));
        let names: Vec<String> = names.collect();
        let formatters = rows.columns().iter();
        let formatters = formatters.map(|column| ArrayFormatter::try_new(column, &options));
        let formatters: Vec<ArrayFormatter<'_>> = formatters.collect::<Result<_, _>>()?;
        let widths = names.iter().map(|name| name.chars().count());
        let width = widths.max().unwrap_or_default();
        for row in 0..taken {
            self.num_shown += 1;
            writeln!(self.output, "-- row {} --", count(self.num_shown as u64))?;
            for (name, formatter) in names.iter().zip(&formatters) {
                let value = formatter.value(row).to_string();
                let mut lines = value.lines().map(one_line);
                let first = lines.next().unwrap_or_default();
                writeln!(
                    self.output,
                    "{}",
                    format!("{name:width$}  {first}").trim_end()
                )?;
                for line in lines {
                    writeln!(
                        self.output,
                        "{}",
                        format!("{:width$}  {line}", "").trim_end()
                    )?;
                }
            }
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.has_more
    }

    fn finish(mut self: Box<Self>) -> Result<(), ShowError> {
        if self.num_shown == 0 {
            writeln!(self.output, "no rows")?;
        }
        if self.has_more {
            let RowLimit { hint, .. } = self.limit;
            writeln!(self.output, "{}; {hint}", first_rows(&self.limit))?;
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
            width: None,
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

    fn fitted(format: Format, width: usize) -> String {
        let column = |text: &str| -> ArrayRef { Arc::new(StringArray::from(vec![text])) };
        let rows = RecordBatch::try_from_iter([
            ("n", column("1")),
            ("text", column(&"word\n".repeat(20))),
            ("a_long_name", column("x")),
        ]);
        let (rows, limit) = (rows.unwrap(), RowLimit::of_terminal(width));
        let mut text = Vec::new();
        let mut sink = open_sink(format, &rows.schema(), Box::new(&mut text), limit).unwrap();
        sink.write(&rows).unwrap();
        sink.finish().unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_table_fits_its_terminal_and_says_what_it_leaves_out() {
        for width in [1, 5, 12, 24, 30, 40, 80, 200] {
            let text = fitted(Format::Table, width);
            let lines = text.lines().filter(|line| line.starts_with(['|', '+']));
            let widest = lines.map(|line| line.chars().count()).max();
            assert!(widest <= Some(width.max(5)), "{width}: {text}");
            assert_eq!(text.contains("columns"), width < 32, "{text}");
            let is_cut = text.contains('\u{2026}');
            assert_eq!(is_cut, (24..200).contains(&width), "{text}");
        }
        let broken = fitted(Format::Table, 32);
        assert!(
            broken.contains("| a_    |\n") && broken.contains("| name  |\n"),
            "{broken}"
        );
        assert!(fitted(Format::Table, 40).contains("| word word word wo\u{2026} | x           |"));
    }

    #[test]
    fn a_record_shows_whole_values() {
        let text = fitted(Format::Record, 20);
        let word = "             word\n";
        let lines = format!(
            "-- row 1 --\nn            1\ntext         word\n{}a_long_name  x\n",
            word.repeat(19)
        );
        assert_eq!(text, lines);
    }
}
