use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arrow::array::{
    ArrayRef, ArrowPrimitiveType, BooleanBuilder, Float64Builder, Int32Builder, Int64Builder,
    ListArray, MapBuilder, MapFieldNames, PrimitiveBuilder, RecordBatch, StringBuilder,
    StringViewBuilder, StructArray, TimestampMicrosecondBuilder,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer};
use arrow::datatypes::{Float64Type, Int64Type};
use arrow::error::ArrowError;
use bytes::Bytes;

use super::row::{OK, Outcome, Times, Verdict};
use super::{Answer, AnswerFields};
use crate::call::{CallEnd, CallRow, RolloutKey};
use crate::retry::{Failure, FailureClass};
use crate::schema;

/// Answers of at least this many bytes become a buffer of their batch without a copy. Smaller ones are copied together,
/// since a buffer of its own costs more than the copy.
pub(super) const ADOPTED_BYTES: usize = 32 * 1024;

/// Builder of batches of [`schema::outcomes`].
#[derive(Debug, Default)]
pub struct OutcomeBatchBuilder {
    task_index: Int64Builder,
    rollout_index: Int64Builder,
    attempt: Int64Builder,
    agent_name: StringViewBuilder,
    outcome: StringViewBuilder,
    http_status: Int32Builder,
    error: StringViewBuilder,
    terminal: BooleanBuilder,
    failure_terminal: BooleanBuilder,
    response_headers: StringViewBuilder,
    dispatched_at: Utc,
    first_byte_at: Utc,
    finished_at: Utc,
    permit_wait_ms: Float64Builder,
    rate_wait_ms: Float64Builder,
    connect_ms: Float64Builder,
    server_ms: Float64Builder,
    client_ms: Float64Builder,
    concurrency_limit: Int32Builder,
    answer: StringViewBuilder,
    reward: Float64Builder,
    input_tokens: Int64Builder,
    output_tokens: Int64Builder,
    total_tokens: Int64Builder,
    metrics: Metrics<Float64Type>,
    integer_metrics: Metrics<Int64Type>,
    truncated: BooleanBuilder,
    masked: BooleanBuilder,
    perf: StringViewBuilder,
    info: StringViewBuilder,
    result: StringViewBuilder,
    calls: CallsBuilder,
    rows: usize,
    bytes: usize,
}

/// A column of instants in UTC.
#[derive(Debug)]
struct Utc(TimestampMicrosecondBuilder);

impl Default for Utc {
    fn default() -> Self {
        Self(TimestampMicrosecondBuilder::new().with_data_type(schema::timestamp()))
    }
}

/// A column of numbers by name.
#[derive(Debug)]
struct Metrics<T: ArrowPrimitiveType>(MapBuilder<StringBuilder, PrimitiveBuilder<T>>);

impl<T: ArrowPrimitiveType> Default for Metrics<T> {
    fn default() -> Self {
        let names = MapFieldNames {
            entry: "key_value".into(),
            key: "key".into(),
            value: "value".into(),
        };
        let (keys, values) = (StringBuilder::new(), PrimitiveBuilder::new());
        Self(MapBuilder::new(Some(names), keys, values))
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e6
}

fn microseconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

impl OutcomeBatchBuilder {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Rows so far.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there are no rows yet.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Bytes of the answers so far.
    pub fn num_bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a row.
    ///
    /// # Errors
    /// The answer is not UTF-8. The row is then added in part, so the batch is lost.
    pub fn append(&mut self, outcome: Outcome) -> Result<(), ArrowError> {
        let Outcome {
            key,
            agent_name,
            http_status,
            response_headers,
            dispatched_at,
            times,
            concurrency_limit,
            calls,
            verdict,
        } = outcome;
        let RolloutKey {
            task_index,
            rollout_index,
            attempt,
        } = key;
        self.rows += 1;
        self.task_index.append_value(task_index);
        self.rollout_index.append_value(rollout_index);
        self.attempt.append_value(attempt.into());
        self.agent_name.append_value(agent_name);
        self.http_status.append_option(http_status.map(i32::from));
        self.response_headers.append_option(response_headers);
        self.append_times(dispatched_at, times);
        self.concurrency_limit
            .append_option(concurrency_limit.and_then(|limit| i32::try_from(limit).ok()));
        self.calls.append(calls);
        match verdict {
            Verdict::Ok(answer) => {
                self.outcome.append_value(OK);
                self.error.append_null();
                self.terminal.append_value(false);
                self.failure_terminal.append_value(false);
                self.answer.append_null();
                self.append_answer(answer)
            }
            Verdict::Failed { failure, terminal } => {
                self.terminal.append_value(terminal);
                self.append_failure(failure)?;
                self.append_no_answer()
            }
        }
    }

    fn append_failure(&mut self, failure: Failure) -> Result<(), ArrowError> {
        let Failure {
            class,
            message,
            failure_terminal,
            answer,
            retry_after: _,
            // The status of the attempt has a column; this one is of a call within it.
            http_status: _,
            unreachable: _,
        } = failure;
        self.outcome.append_value(class.name());
        self.error.append_value(message);
        self.failure_terminal.append_value(failure_terminal);
        match answer {
            Some(answer) => {
                self.bytes += answer.len();
                append_text(&mut self.answer, answer)
            }
            None => {
                self.answer.append_null();
                Ok(())
            }
        }
    }

    fn append_times(&mut self, dispatched_at: SystemTime, times: Times) {
        let after = |span: Duration| microseconds(dispatched_at + span);
        let finished = times.connect.or(times.server);
        let finished =
            finished.map(|_| times.connect.unwrap_or_default() + times.server.unwrap_or_default());
        let waited = times.waited;
        self.dispatched_at
            .0
            .append_value(microseconds(dispatched_at));
        self.first_byte_at
            .0
            .append_option(times.first_byte.map(after));
        self.finished_at.0.append_option(finished.map(after));
        self.permit_wait_ms
            .append_value(milliseconds(waited.permit));
        self.rate_wait_ms.append_value(milliseconds(waited.rate));
        self.connect_ms
            .append_option(times.connect.map(milliseconds));
        self.server_ms.append_option(times.server.map(milliseconds));
        self.client_ms.append_option(times.client.map(milliseconds));
    }

    fn append_answer(&mut self, answer: Answer) -> Result<(), ArrowError> {
        let Answer { body, fields } = answer;
        let AnswerFields {
            metrics,
            reward,
            input_tokens,
            output_tokens,
            total_tokens,
            masked,
            perf,
            truncated,
            info,
            // An answer that counts has no flags of a failure.
            no_persist: _,
            failure_class: _,
            failure_terminal: _,
            has_response: _,
        } = fields;
        self.reward.append_option(reward);
        self.input_tokens.append_option(input_tokens);
        self.output_tokens.append_option(output_tokens);
        self.total_tokens.append_option(total_tokens);
        let integers: Option<Vec<i64>> = metrics.iter().map(|(_, value)| value.as_i64()).collect();
        let (floats, ints) = (&mut self.metrics.0, &mut self.integer_metrics.0);
        for (name, value) in &metrics {
            floats.keys().append_value(name);
            floats.values().append_value(value.as_f64());
        }
        floats.append(true)?;
        for ((name, _), value) in metrics.iter().zip(integers.iter().flatten()) {
            ints.keys().append_value(name);
            ints.values().append_value(*value);
        }
        ints.append(integers.is_some())?;
        self.truncated.append_option(truncated);
        self.masked.append_value(masked);
        self.perf.append_option(perf);
        self.bytes += body.len() + info.len();
        self.info.append_value(info);
        append_text(&mut self.result, body)
    }

    fn append_no_answer(&mut self) -> Result<(), ArrowError> {
        self.reward.append_null();
        self.input_tokens.append_null();
        self.output_tokens.append_null();
        self.total_tokens.append_null();
        self.metrics.0.append(false)?;
        self.integer_metrics.0.append(false)?;
        self.truncated.append_null();
        self.masked.append_null();
        self.perf.append_null();
        self.info.append_null();
        self.result.append_null();
        Ok(())
    }

    /// Takes the rows so far as a batch.
    ///
    /// # Errors
    /// The columns do not fit the schema (a defect).
    pub fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        self.rows = 0;
        self.bytes = 0;
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.task_index.finish()),
            Arc::new(self.rollout_index.finish()),
            Arc::new(self.attempt.finish()),
            Arc::new(self.agent_name.finish()),
            Arc::new(self.outcome.finish()),
            Arc::new(self.http_status.finish()),
            Arc::new(self.error.finish()),
            Arc::new(self.terminal.finish()),
            Arc::new(self.failure_terminal.finish()),
            Arc::new(self.response_headers.finish()),
            Arc::new(self.dispatched_at.0.finish()),
            Arc::new(self.first_byte_at.0.finish()),
            Arc::new(self.finished_at.0.finish()),
            Arc::new(self.permit_wait_ms.finish()),
            Arc::new(self.rate_wait_ms.finish()),
            Arc::new(self.connect_ms.finish()),
            Arc::new(self.server_ms.finish()),
            Arc::new(self.client_ms.finish()),
            Arc::new(self.concurrency_limit.finish()),
            Arc::new(self.answer.finish()),
            Arc::new(self.reward.finish()),
            Arc::new(self.input_tokens.finish()),
            Arc::new(self.output_tokens.finish()),
            Arc::new(self.total_tokens.finish()),
            Arc::new(self.metrics.0.finish()),
            Arc::new(self.integer_metrics.0.finish()),
            Arc::new(self.truncated.finish()),
            Arc::new(self.masked.finish()),
            Arc::new(self.perf.finish()),
            Arc::new(self.info.finish()),
            Arc::new(self.result.finish()),
            Arc::new(self.calls.finish()?),
        ];
        RecordBatch::try_new(schema::outcomes(), columns)
    }
}

fn append_text(column: &mut StringViewBuilder, text: Bytes) -> Result<(), ArrowError> {
    match u32::try_from(text.len()) {
        Ok(len) if text.len() >= ADOPTED_BYTES => {
            let block = column.append_block(Buffer::from(text));
            column.try_append_view(block, 0, len)
        }
        _ => {
            let text = std::str::from_utf8(&text)
                .map_err(|e| ArrowError::InvalidArgumentError(e.to_string()))?;
            column.try_append_value(text)
        }
    }
}

/// Builds the column of the calls within attempts.
#[derive(Debug)]
struct CallsBuilder {
    lengths: Vec<usize>,
    call: Int64Builder,
    turn: Int64Builder,
    kind: StringViewBuilder,
    name: StringViewBuilder,
    address: StringViewBuilder,
    outcome: StringViewBuilder,
    http_status: Int32Builder,
    error: StringViewBuilder,
    retry: Int64Builder,
    started_at: Utc,
    finished_at: Utc,
    latency_ms: Float64Builder,
    input_tokens: Int64Builder,
    output_tokens: Int64Builder,
    request_bytes: Int64Builder,
    response_bytes: Int64Builder,
}

impl Default for CallsBuilder {
    fn default() -> Self {
        Self {
            lengths: Vec::new(),
            call: Int64Builder::new(),
            turn: Int64Builder::new(),
            kind: StringViewBuilder::new(),
            // Every row has one of the same few names and addresses.
            name: StringViewBuilder::new().with_deduplicate_strings(),
            address: StringViewBuilder::new().with_deduplicate_strings(),
            outcome: StringViewBuilder::new(),
            http_status: Int32Builder::new(),
            error: StringViewBuilder::new(),
            retry: Int64Builder::new(),
            started_at: Utc::default(),
            finished_at: Utc::default(),
            latency_ms: Float64Builder::new(),
            input_tokens: Int64Builder::new(),
            output_tokens: Int64Builder::new(),
            request_bytes: Int64Builder::new(),
            response_bytes: Int64Builder::new(),
        }
    }
}

impl CallsBuilder {
    /// Adds the calls of one attempt.
    fn append(&mut self, calls: Vec<CallRow>) {
        self.lengths.push(calls.len());
        for call in calls {
            self.append_call(call);
        }
    }

    fn append_call(&mut self, call: CallRow) {
        let CallRow {
            start,
            name,
            address,
            end,
        } = call;
        let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.call.append_value(start.call.into());
        self.turn.append_value(start.turn.into());
        self.kind.append_value(start.kind.name());
        self.name.append_option(name);
        self.address.append_option(address);
        self.retry.append_value(start.retry.into());
        self.started_at
            .0
            .append_value(microseconds(start.started_at));
        let elapsed = end.as_ref().map(|end| end.elapsed);
        let finished = elapsed.map(|elapsed| microseconds(start.started_at + elapsed));
        self.finished_at.0.append_option(finished);
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
    fn finish(&mut self) -> Result<ListArray, ArrowError> {
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
            Arc::new(self.retry.finish()),
            Arc::new(self.started_at.0.finish()),
            Arc::new(self.finished_at.0.finish()),
            Arc::new(self.latency_ms.finish()),
            Arc::new(self.input_tokens.finish()),
            Arc::new(self.output_tokens.finish()),
            Arc::new(self.request_bytes.finish()),
            Arc::new(self.response_bytes.finish()),
        ];
        let calls = StructArray::try_new(schema::call_fields(), columns, None)?;
        ListArray::try_new(
            schema::call_list(),
            OffsetBuffer::from_lengths(lengths),
            Arc::new(calls),
            Some(nulls),
        )
    }
}

fn outcome(end: Option<&CallEnd>) -> &'static str {
    match end {
        None => FailureClass::Interrupted.name(),
        Some(end) => end.failure.map_or(OK, FailureClass::name),
    }
}
