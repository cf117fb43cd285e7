use std::io::Write;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use arrow::util::display::FormatOptions;
use arrow::util::pretty::pretty_format_batches_with_options;

use super::text::count;
use super::{RowSink, ShowError};

/// Rows that a table shows where nobody said how many; a terminal has no use for more.
const MAX_ROWS: usize = 1000;

/// Rows of one table where all are wanted: its widths are known only when it is whole.
const BLOCK_ROWS: usize = 10_000;

/// How many rows a table shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowLimit {
    /// Rows; 0 stands for all of them, as several tables one below the other where they are many.
    pub rows: usize,
    /// What gives the others, for the line below a table that is not whole.
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

/// A table for people. It needs all rows to know its widths, so their number is bounded.
pub(super) struct TableSink<'a> {
    schema: SchemaRef,
    output: Box<dyn Write + Send + 'a>,
    limit: RowLimit,
    held: Vec<RecordBatch>,
    num_held: usize,
    is_begun: bool,
    has_more: bool,
}

impl<'a> TableSink<'a> {
    pub(super) fn new(
        schema: &SchemaRef,
        output: Box<dyn Write + Send + 'a>,
        limit: RowLimit,
    ) -> Self {
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
        match self.limit.rows == 0 && self.num_held >= BLOCK_ROWS {
            true => self.print(),
            false => Ok(()),
        }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array};

    use super::*;
    use crate::show::open_table;

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
        let mut sink = open_table(&batch(0).schema(), Box::new(&mut text), limit);
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
