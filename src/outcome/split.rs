//! Splits outcomes into tables. Each function fails if its batch lacks the columns that it needs.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Float64Array, RecordBatch, StringViewArray,
    UInt32Array, new_null_array,
};
use arrow::compute::{filter_record_batch, take};
use arrow::error::ArrowError;

use super::row::OK;
use crate::schema;

/// Returns the rows of `attempts` in a batch of outcomes: one for each outcome.
pub fn attempts_of(outcomes: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let indices: Vec<usize> = (0..schema::attempts().fields().len()).collect();
    outcomes.project(&indices)
}

/// Returns the rows of `rollouts` in a batch of outcomes: those that are `ok`.
pub fn rollouts_of(outcomes: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let ok: BooleanArray = column(outcomes, schema::OUTCOME)?
        .as_string_view()
        .iter()
        .map(|outcome| Some(outcome == Some(OK)))
        .collect();
    let all = ok.true_count() == ok.len();
    let ok = if all {
        outcomes.clone()
    } else {
        filter_record_batch(outcomes, &ok)?
    };
    let schema = schema::rollouts();
    let columns = schema.fields().iter().map(|field| {
        let name = match field.name().as_str() {
            schema::STARTED_AT => schema::DISPATCHED_AT,
            schema::LATENCY_MS => schema::SERVER_MS,
            name => name,
        };
        column(&ok, name).cloned()
    });
    let columns = columns.collect::<Result<_, _>>()?;
    RecordBatch::try_new(schema, columns)
}

/// Returns the outcomes of rows of `rollouts`, with the columns that these rows have.
pub fn outcomes_of(rollouts: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let rows = rollouts.num_rows();
    let columns = schema::outcomes();
    let columns = columns.fields().iter().map(|field| -> ArrayRef {
        let same = |name: &str| rollouts.column_by_name(name).cloned();
        let known = match field.name().as_str() {
            schema::OUTCOME => {
                let ok = std::iter::repeat_n(Some(OK), rows);
                Some(Arc::new(ok.collect::<StringViewArray>()) as ArrayRef)
            }
            schema::DISPATCHED_AT => same(schema::STARTED_AT),
            schema::SERVER_MS => same(schema::LATENCY_MS),
            schema::TERMINAL | schema::FAILURE_TERMINAL => {
                Some(Arc::new(BooleanArray::from(vec![false; rows])) as ArrayRef)
            }
            schema::PERMIT_WAIT_MS | schema::RATE_WAIT_MS => {
                Some(Arc::new(Float64Array::from(vec![0.0; rows])) as ArrayRef)
            }
            name => same(name),
        };
        known.unwrap_or_else(|| new_null_array(field.data_type(), rows))
    });
    RecordBatch::try_new(schema::outcomes(), columns.collect())
}

/// Returns the rows of `calls` in a batch of outcomes.
pub fn calls_of(outcomes: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let lists = outcomes.column_by_name(schema::CALLS);
    let lists = lists.and_then(|lists| lists.as_list_opt::<i32>());
    let lists = lists.ok_or_else(|| {
        ArrowError::SchemaError(format!("column '{}' is not a list", schema::CALLS))
    })?;
    if lists.null_count() == lists.len() {
        return Ok(RecordBatch::new_empty(schema::calls()));
    }
    let lengths = (0_u32..).zip(lists.offsets().lengths());
    let rows = lengths.flat_map(|(row, length)| std::iter::repeat_n(row, length));
    let rows = UInt32Array::from_iter_values(rows);
    let (first, last) = (
        lists.value_offsets().first().copied().unwrap_or_default() as usize,
        lists.value_offsets().last().copied().unwrap_or_default() as usize,
    );
    let calls = lists.values().slice(first, last - first);
    let calls = calls.as_struct_opt().ok_or_else(|| {
        ArrowError::SchemaError(format!("column '{}' holds no structs", schema::CALLS))
    })?;
    let attempt = [
        schema::TASK_INDEX,
        schema::ROLLOUT_INDEX,
        schema::ATTEMPT,
        schema::AGENT_NAME,
    ];
    let mut columns = Vec::new();
    for name in attempt {
        columns.push(take(column(outcomes, name)?, &rows, None)?);
    }
    columns.extend(calls.columns().iter().cloned());
    RecordBatch::try_new(schema::calls(), columns)
}

/// Finds a column.
///
/// # Errors
/// The batch has none of this name.
pub(crate) fn column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef, ArrowError> {
    batch
        .column_by_name(name)
        .ok_or_else(|| ArrowError::SchemaError(format!("no column '{name}'")))
}
