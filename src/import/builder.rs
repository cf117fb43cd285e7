//! Imported rows as batches: [`TaskRows`] and [`RolloutRows`].

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use arrow::array::{Array, ArrayRef, Int64Array, Int64Builder, RecordBatch, StringViewBuilder};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use bytes::Bytes;

use super::error::ImportError;
use super::keys::RowKey;
use crate::call::RolloutKey;
use crate::outcome::{
    Answer, AnswerFields, Outcome, OutcomeBatchBuilder, Times, Verdict, rollouts_of,
};
use crate::schema;

/// Running number of a row over all files of a table.
pub(super) const SOURCE_ROW: &str = "source_row";
/// Which of the files a row is from, counted from 0.
pub(super) const SOURCE_NUMBER: &str = "source_number";
/// Bytes before the row in its file.
pub(super) const SOURCE_OFFSET: &str = "source_offset";
/// Bytes of the row.
pub(super) const SOURCE_LENGTH: &str = "source_length";

const BATCH_ROWS: usize = 8192;

/// Where a row was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source {
    pub(super) number: usize,
    pub(super) line: u64,
    pub(super) offset: u64,
    pub(super) length: usize,
}

impl Source {
    /// Of a row that stands in no file, beside one of them.
    pub(super) fn nowhere(number: usize) -> Self {
        Self {
            number,
            line: 0,
            offset: 0,
            length: 0,
        }
    }
}

fn signed(value: impl TryInto<i64>) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}

#[derive(Default)]
struct Sources {
    row: Int64Builder,
    number: Int64Builder,
    offset: Int64Builder,
    length: Int64Builder,
    rows: i64,
}

impl Sources {
    fn append(&mut self, source: Source) {
        self.row.append_value(self.rows);
        self.number.append_value(signed(source.number));
        self.offset.append_value(signed(source.offset));
        self.length.append_value(signed(source.length));
        self.rows += 1;
    }

    fn finish(&mut self) -> [ArrayRef; 4] {
        [
            Arc::new(self.row.finish()),
            Arc::new(self.number.finish()),
            Arc::new(self.offset.finish()),
            Arc::new(self.length.finish()),
        ]
    }
}

/// The schema of a run's table, and where each row was read.
fn with_sources(schema: &SchemaRef) -> SchemaRef {
    let mut fields = schema.fields().to_vec();
    for name in [SOURCE_ROW, SOURCE_NUMBER, SOURCE_OFFSET, SOURCE_LENGTH] {
        fields.push(Arc::new(Field::new(name, DataType::Int64, false)));
    }
    Arc::new(Schema::new(fields))
}

pub(super) fn tasks_schema() -> SchemaRef {
    with_sources(&schema::tasks())
}

pub(super) fn rollouts_schema() -> SchemaRef {
    with_sources(&schema::rollouts())
}

/// `tasks`, a row for each rollout that was asked for.
pub(super) struct TaskRows {
    task_index: Int64Builder,
    rollout_index: Int64Builder,
    agent_name: StringViewBuilder,
    source_file: StringViewBuilder,
    source_line: Int64Builder,
    request: StringViewBuilder,
    sources: Sources,
    rows: usize,
    batches: Vec<RecordBatch>,
}

/// The request differs between the rollouts of a task in nothing but its keys, if at all, so that
/// equal texts are kept once.
fn shared() -> StringViewBuilder {
    StringViewBuilder::new().with_deduplicate_strings()
}

impl TaskRows {
    pub(super) fn new() -> Self {
        Self {
            task_index: Int64Builder::new(),
            rollout_index: Int64Builder::new(),
            agent_name: shared(),
            source_file: shared(),
            source_line: Int64Builder::new(),
            request: shared(),
            sources: Sources::default(),
            rows: 0,
            batches: Vec::new(),
        }
    }

    pub(super) fn append(
        &mut self,
        key: RowKey,
        agent_name: &str,
        request: &str,
        file: &str,
        source: Source,
    ) -> Result<(), ImportError> {
        self.task_index.append_value(key.task_index);
        self.rollout_index.append_value(key.rollout_index);
        self.agent_name.append_value(agent_name);
        self.source_file.append_value(file);
        self.source_line.append_value(signed(source.line));
        self.request.append_value(request);
        self.sources.append(source);
        self.rows += 1;
        if self.rows == BATCH_ROWS {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ImportError> {
        let mut no_digest = StringViewBuilder::new();
        (0..self.rows).for_each(|_| no_digest.append_value(""));
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(self.task_index.finish()),
            Arc::new(self.agent_name.finish()),
            Arc::new(self.rollout_index.finish()),
            Arc::new(Int64Array::from(vec![1; self.rows])),
            Arc::new(self.source_file.finish()),
            Arc::new(self.source_line.finish()),
            Arc::new(no_digest.finish()),
            Arc::new(self.request.finish()),
        ];
        columns.extend(self.sources.finish());
        self.rows = 0;
        let batch = RecordBatch::try_new(tasks_schema(), columns)?;
        self.batches.push(batch);
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Vec<RecordBatch>, ImportError> {
        self.flush()?;
        Ok(self.batches)
    }
}

/// `rollouts`.
pub(super) struct RolloutRows {
    outcomes: OutcomeBatchBuilder,
    sources: Sources,
    batches: Vec<RecordBatch>,
}

impl RolloutRows {
    pub(super) fn new() -> Self {
        Self {
            outcomes: OutcomeBatchBuilder::new(),
            sources: Sources::default(),
            batches: Vec::new(),
        }
    }

    pub(super) fn append(
        &mut self,
        key: RowKey,
        agent_name: &str,
        result: String,
        fields: AnswerFields,
        source: Source,
    ) -> Result<(), ImportError> {
        let key = RolloutKey::new(key.task_index, key.rollout_index, 0);
        let body = Bytes::from(result);
        self.outcomes.append(Outcome {
            times: Times {
                server: Some(Duration::ZERO),
                ..Times::default()
            },
            // The files do not say when.
            ..Outcome::new(
                key,
                agent_name,
                UNIX_EPOCH,
                Verdict::Ok(Answer { body, fields }),
            )
        })?;
        self.sources.append(source);
        if self.outcomes.len() == BATCH_ROWS {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ImportError> {
        let rollouts = rollouts_of(&self.outcomes.finish()?)?;
        let mut columns = rollouts.columns().to_vec();
        columns.extend(self.sources.finish());
        let batch = RecordBatch::try_new(rollouts_schema(), columns)?;
        self.batches.push(batch);
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Vec<RecordBatch>, ImportError> {
        self.flush()?;
        Ok(self.batches)
    }
}

/// The batch with its task indices replaced by their ranks.
pub(super) fn renumbered(batch: &RecordBatch, ranks: &[i64]) -> Result<RecordBatch, ImportError> {
    let mut columns = batch.columns().to_vec();
    if let Some(column) = columns.first_mut() {
        let numbers = column.as_any().downcast_ref::<Int64Array>();
        let rank = |number: i64| {
            let place = usize::try_from(number).ok();
            place.and_then(|place| ranks.get(place)).copied()
        };
        let ranked: Option<Int64Array> = numbers.map(|numbers| {
            let numbers = numbers.iter().flatten();
            numbers
                .map(|number| rank(number).unwrap_or(number))
                .collect()
        });
        if let Some(ranked) = ranked {
            *column = Arc::new(ranked);
        }
    }
    Ok(RecordBatch::try_new(batch.schema(), columns)?)
}
