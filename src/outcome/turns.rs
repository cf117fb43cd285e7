use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Float64Builder, Int32Builder, Int64Builder, ListArray, RecordBatch,
    StringViewBuilder, StructArray, TimestampMicrosecondBuilder, UInt32Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::take;
use arrow::error::ArrowError;

use super::batch::{microseconds, milliseconds};
use super::row::OK;
use crate::retry::FailureClass;
use crate::schema;
use crate::turn::{Turn, TurnEnd};

/// Builds the column of the calls within attempts.
#[derive(Debug)]
pub(super) struct TurnsBuilder {
    lengths: Vec<usize>,
    call: Int64Builder,
    turn: Int64Builder,
    kind: StringViewBuilder,
    name: StringViewBuilder,
    address: StringViewBuilder,
    outcome: StringViewBuilder,
    http_status: Int32Builder,
    error: StringViewBuilder,
    repetition: Int64Builder,
    started_at: TimestampMicrosecondBuilder,
    finished_at: TimestampMicrosecondBuilder,
    latency_ms: Float64Builder,
    input_tokens: Int64Builder,
    output_tokens: Int64Builder,
    request_bytes: Int64Builder,
    response_bytes: Int64Builder,
}

impl TurnsBuilder {
    pub(super) fn new() -> Self {
        let utc = || TimestampMicrosecondBuilder::new().with_data_type(schema::timestamp());
        Self {
            lengths: Vec::new(),
            call: Int64Builder::new(),
            turn: Int64Builder::new(),
            kind: StringViewBuilder::new(),
            // The same few names and addresses stand in every row.
            name: StringViewBuilder::new().with_deduplicate_strings(),
            address: StringViewBuilder::new().with_deduplicate_strings(),
            outcome: StringViewBuilder::new(),
            http_status: Int32Builder::new(),
            error: StringViewBuilder::new(),
            repetition: Int64Builder::new(),
            started_at: utc(),
            finished_at: utc(),
            latency_ms: Float64Builder::new(),
            input_tokens: Int64Builder::new(),
            output_tokens: Int64Builder::new(),
            request_bytes: Int64Builder::new(),
            response_bytes: Int64Builder::new(),
        }
    }

    /// Adds the calls of one attempt.
    pub(super) fn append(&mut self, turns: Vec<Turn>) {
        self.lengths.push(turns.len());
        for turn in turns {
            self.append_turn(turn);
        }
    }

    fn append_turn(&mut self, turn: Turn) {
        let Turn {
            start,
            name,
            address,
            end,
        } = turn;
        let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.call.append_value(start.call.into());
        self.turn.append_value(start.turn.into());
        self.kind.append_value(start.kind.name());
        self.name.append_option(name);
        self.address.append_option(address);
        self.repetition.append_value(start.repetition.into());
        self.started_at.append_value(microseconds(start.started_at));
        let elapsed = end.as_ref().map(|end| end.elapsed);
        let finished = elapsed.map(|elapsed| microseconds(start.started_at + elapsed));
        self.finished_at.append_option(finished);
        self.latency_ms.append_option(elapsed.map(milliseconds));
        self.outcome.append_value(outcome(end.as_ref()));
        let end = end.unwrap_or_default();
        self.http_status
            .append_option(end.http_status.map(i32::from));
        self.error.append_option(end.error);
        self.input_tokens.append_option(end.input_tokens.map(count));
        self.output_tokens
            .append_option(end.output_tokens.map(count));
        let is_known = elapsed.is_some();
        let bytes = |bytes: u64| is_known.then(|| count(bytes));
        self.request_bytes.append_option(bytes(end.request_bytes));
        self.response_bytes.append_option(bytes(end.response_bytes));
    }

    /// The column so far; the builder is empty afterwards.
    pub(super) fn finish(&mut self) -> Result<ListArray, ArrowError> {
        let lengths = std::mem::take(&mut self.lengths);
        let nulls: NullBuffer = lengths.iter().map(|length| *length > 0).collect();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.call.finish()),
            Arc::new(self.turn.finish()),
            Arc::new(self.kind.finish()),
            Arc::new(self.name.finish()),
            Arc::new(self.address.finish()),
            Arc::new(self.outcome.finish()),
            Arc::new(self.http_status.finish()),
            Arc::new(self.error.finish()),
            Arc::new(self.repetition.finish()),
            Arc::new(self.started_at.finish()),
            Arc::new(self.finished_at.finish()),
            Arc::new(self.latency_ms.finish()),
            Arc::new(self.input_tokens.finish()),
            Arc::new(self.output_tokens.finish()),
            Arc::new(self.request_bytes.finish()),
            Arc::new(self.response_bytes.finish()),
        ];
        let turns = StructArray::try_new(schema::turn_fields(), columns, None)?;
        ListArray::try_new(
            schema::turn_list(),
            OffsetBuffer::from_lengths(lengths),
            Arc::new(turns),
            Some(nulls),
        )
    }
}

fn outcome(end: Option<&TurnEnd>) -> &'static str {
    match end {
        None => FailureClass::Interrupted.name(),
        Some(end) => end.failure.map_or(OK, FailureClass::name),
    }
}

/// The rows of `turns` that a batch of outcomes stands for.
///
/// # Errors
/// The batch is not one of [`schema::outcomes`].
pub fn turns_of(outcomes: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    // The journal of an earlier version has no such column.
    let Some(lists) = outcomes.column_by_name(schema::TURNS) else {
        return Ok(RecordBatch::new_empty(schema::turns()));
    };
    let lists = lists.as_list_opt::<i32>().ok_or_else(|| {
        ArrowError::SchemaError(format!("column '{}' is not a list", schema::TURNS))
    })?;
    if lists.null_count() == lists.len() {
        return Ok(RecordBatch::new_empty(schema::turns()));
    }
    let mut rows = Vec::new();
    for (row, length) in lists.offsets().lengths().enumerate() {
        let row =
            u32::try_from(row).map_err(|e| ArrowError::InvalidArgumentError(e.to_string()))?;
        rows.extend(std::iter::repeat_n(row, length));
    }
    let (first, last) = (
        lists.value_offsets().first().copied().unwrap_or_default() as usize,
        lists.value_offsets().last().copied().unwrap_or_default() as usize,
    );
    let turns = lists.values().slice(first, last - first);
    let turns = turns.as_struct_opt().ok_or_else(|| {
        ArrowError::SchemaError(format!("column '{}' holds no structs", schema::TURNS))
    })?;
    let rows = UInt32Array::from(rows);
    let attempt = [
        schema::TASK_INDEX,
        schema::ROLLOUT_INDEX,
        schema::ATTEMPT,
        schema::AGENT_NAME,
    ];
    let mut columns = Vec::new();
    for name in attempt {
        let column = outcomes
            .column_by_name(name)
            .ok_or_else(|| ArrowError::SchemaError(format!("no column '{name}'")))?;
        columns.push(take(column, &rows, None)?);
    }
    columns.extend(turns.columns().iter().cloned());
    RecordBatch::try_new(schema::turns(), columns)
}
