use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Builder, StringViewBuilder};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;

use super::TaskRow;
use crate::schema;

/// A batch is full at this many rows, or bytes of requests.
const BATCH_ROWS: usize = 8192;
const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// Builds batches of [`schema::tasks`].
#[derive(Debug, Default)]
pub struct TaskBatchBuilder {
    task_index: Int64Builder,
    agent_name: StringViewBuilder,
    first_rollout_index: Int64Builder,
    num_repeats: Int64Builder,
    source_file: StringViewBuilder,
    source_line: Int64Builder,
    task_digest: StringViewBuilder,
    request: StringViewBuilder,
    rows: usize,
    bytes: usize,
}

impl TaskBatchBuilder {
    /// No rows yet.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Time for [`Self::finish`].
    pub fn is_full(&self) -> bool {
        self.rows >= BATCH_ROWS || self.bytes >= BATCH_BYTES
    }

    /// Adds a row.
    ///
    /// # Errors
    /// The request is larger than a column can hold: 2 GiB.
    pub fn append(&mut self, row: &TaskRow) -> Result<(), ArrowError> {
        self.task_index.append_value(row.task_index);
        self.agent_name.try_append_value(&row.agent_name)?;
        self.first_rollout_index
            .append_value(row.first_rollout_index);
        self.num_repeats.append_value(row.num_repeats.into());
        self.source_file.try_append_value(&row.source_file)?;
        self.source_line
            .append_value(i64::try_from(row.source_line).unwrap_or(i64::MAX));
        self.task_digest
            .try_append_value(format!("{:032x}", u128::from_be_bytes(row.task_digest)))?;
        self.request.try_append_value(&row.request)?;
        self.rows += 1;
        self.bytes += row.request.len();
        Ok(())
    }

    /// The rows so far as a batch; the builder is empty afterwards.
    ///
    /// # Errors
    /// The columns do not fit the schema, which would be a defect.
    pub fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        self.rows = 0;
        self.bytes = 0;
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.task_index.finish()),
            Arc::new(self.agent_name.finish()),
            Arc::new(self.first_rollout_index.finish()),
            Arc::new(self.num_repeats.finish()),
            Arc::new(self.source_file.finish()),
            Arc::new(self.source_line.finish()),
            Arc::new(self.task_digest.finish()),
            Arc::new(self.request.finish()),
        ];
        RecordBatch::try_new(schema::tasks(), columns)
    }
}
