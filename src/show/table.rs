use std::io::Write;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use arrow::util::display::FormatOptions;
use arrow::util::pretty::pretty_format_batches_with_options;

use super::{RowSink, ShowError};

/// Rows that a table shows; a terminal has no use for more.
const MAX_ROWS: usize = 1000;

/// A table for people. It needs all rows to know its widths, so their number is bounded.
pub(super) struct TableSink<'a> {
    schema: SchemaRef,
    output: Box<dyn Write + Send + 'a>,
    shown: Vec<RecordBatch>,
    rows: usize,
    all: usize,
}

impl<'a> TableSink<'a> {
    pub(super) fn new(schema: &SchemaRef, output: Box<dyn Write + Send + 'a>) -> Self {
        Self {
            schema: SchemaRef::clone(schema),
            output,
            shown: Vec::new(),
            rows: 0,
            all: 0,
        }
    }
}

impl RowSink for TableSink<'_> {
    fn write(&mut self, rows: &RecordBatch) -> Result<(), ShowError> {
        self.all += rows.num_rows();
        let taken = rows.num_rows().min(MAX_ROWS - self.rows);
        if taken > 0 {
            self.rows += taken;
            self.shown.push(rows.slice(0, taken));
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<(), ShowError> {
        if self.shown.is_empty() {
            self.shown.push(RecordBatch::new_empty(self.schema));
        }
        let options = FormatOptions::default().with_null("NULL");
        writeln!(
            self.output,
            "{}",
            pretty_format_batches_with_options(&self.shown, &options)?
        )?;
        if self.all > self.rows {
            writeln!(
                self.output,
                "{} of {} rows; --format csv, json, ndjson or parquet gives all",
                self.rows, self.all
            )?;
        }
        Ok(self.output.flush()?)
    }
}
