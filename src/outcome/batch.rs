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
use crate::call::{CallEnd, CallRow};
use crate::retry::{Failure, FailureClass};
use crate::schema;

/// Answers of at least this many bytes become a buffer of their batch without a copy. Smaller ones are copied together,
/// since a buffer of its own costs more than the copy.
pub(super) const ADOPTED_BYTES: usize = 32 * 1024;

/// Declares a struct of column builders in the order of the columns, each initialized as given or with its default.
macro_rules! columns {
    (@new) => { Default::default() };
    (@new $new:expr) => { $new };
    (struct $name:ident { $($column:ident: $builder:ty $(= $new:expr)?,)* }) => {
        #[derive(Debug)]
        struct $name {
            $($column: $builder,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($column: columns!(@new $($new)?),)* }
            }
        }

        impl $name {
            fn finish(&mut self) -> Vec<ArrayRef> {
                vec![$(Arc::new(self.$column.finish()),)*]
            }
        }
    };
}

columns! {
    struct OutcomeColumns {
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
        dispatched_at: TimestampMicrosecondBuilder = utc(),
        first_byte_at: TimestampMicrosecondBuilder = utc(),
        finished_at: TimestampMicrosecondBuilder = utc(),
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
        metrics: MapBuilder<StringBuilder, PrimitiveBuilder<Float64Type>> = by_name(),
        integer_metrics: MapBuilder<StringBuilder, PrimitiveBuilder<Int64Type>> = by_name(),
        truncated: BooleanBuilder,
        masked: BooleanBuilder,
        perf: StringViewBuilder,
        info: StringViewBuilder,
        result: StringViewBuilder,
    }
}

columns! {
    struct CallColumns {
        call: Int64Builder,
        turn: Int64Builder,
        kind: StringViewBuilder,
        // Every row has one of the same few names and addresses.
        name: StringViewBuilder = StringViewBuilder::new().with_deduplicate_strings(),
        address: StringViewBuilder = StringViewBuilder::new().with_deduplicate_strings(),
        outcome: StringViewBuilder,
        http_status: Int32Builder,
        error: StringViewBuilder,
        retry: Int64Builder,
        started_at: TimestampMicrosecondBuilder = utc(),
        finished_at: TimestampMicrosecondBuilder = utc(),
        latency_ms: Float64Builder,
        input_tokens: Int64Builder,
        output_tokens: Int64Builder,
        request_bytes: Int64Builder,
        response_bytes: Int64Builder,
    }
}

/// Builder of batches of [`schema::outcomes`].
#[derive(Debug, Default)]
pub struct OutcomeBatchBuilder {
    columns: OutcomeColumns,
    calls: CallsBuilder,
    rows: usize,
    bytes: usize,
}

fn utc() -> TimestampMicrosecondBuilder {
    TimestampMicrosecondBuilder::new().with_data_type(schema::timestamp())
}

fn by_name<T: ArrowPrimitiveType>() -> MapBuilder<StringBuilder, PrimitiveBuilder<T>> {
    let names = MapFieldNames {
        entry: "key_value".into(),
        key: "key".into(),
        value: "value".into(),
    };
    MapBuilder::new(Some(names), StringBuilder::new(), PrimitiveBuilder::new())
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e6
}

fn microseconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

impl OutcomeBatchBuilder {
    /// Creates an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of rows so far.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Returns whether there are no rows yet.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Returns the bytes of the answers so far.
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
        let limit = concurrency_limit.and_then(|limit| i32::try_from(limit).ok());
        self.rows += 1;
        self.bytes += verdict.num_bytes();
        self.calls.append(calls);
        let columns = &mut self.columns;
        columns.task_index.append_value(key.task_index);
        columns.rollout_index.append_value(key.rollout_index);
        columns.attempt.append_value(key.attempt.into());
        columns.agent_name.append_value(agent_name);
        columns
            .http_status
            .append_option(http_status.map(i32::from));
        columns.response_headers.append_option(response_headers);
        columns.concurrency_limit.append_option(limit);
        columns.append_times(dispatched_at, times);
        match verdict {
            Verdict::Ok(answer) => {
                columns.append_failure(None, false)?;
                columns.append_answer(Some(answer))
            }
            Verdict::Failed { failure, terminal } => {
                columns.append_failure(Some(failure), terminal)?;
                columns.append_answer(None)
            }
        }
    }

    /// Takes the rows so far as a batch.
    ///
    /// # Errors
    /// The columns do not fit the schema (a defect).
    pub fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        self.rows = 0;
        self.bytes = 0;
        let mut columns = self.columns.finish();
        columns.push(Arc::new(self.calls.finish()?));
        RecordBatch::try_new(schema::outcomes(), columns)
    }
}

impl OutcomeColumns {
    fn append_failure(
        &mut self,
        failure: Option<Failure>,
        terminal: bool,
    ) -> Result<(), ArrowError> {
        // The column is for the attempt's status; the failure's status is that of a call within the attempt.
        let class = failure.as_ref().map(|failure| failure.class);
        self.outcome
            .append_value(class.map_or(OK, FailureClass::name));
        self.terminal.append_value(terminal);
        let is_final = failure.as_ref().is_some_and(|of| of.failure_terminal);
        self.failure_terminal.append_value(is_final);
        let (message, answer) = failure.map(|of| (of.message, of.answer)).unzip();
        self.error.append_option(message);
        append_text(&mut self.answer, answer.flatten())
    }

    fn append_times(&mut self, dispatched_at: SystemTime, times: Times) {
        let after = |span: Duration| microseconds(dispatched_at + span);
        let finished = times.connect.or(times.server);
        let finished =
            finished.map(|_| times.connect.unwrap_or_default() + times.server.unwrap_or_default());
        let waited = times.waited;
        self.dispatched_at.append_value(microseconds(dispatched_at));
        self.first_byte_at
            .append_option(times.first_byte.map(after));
        self.finished_at.append_option(finished.map(after));
        self.permit_wait_ms
            .append_value(milliseconds(waited.permit));
        self.rate_wait_ms.append_value(milliseconds(waited.rate));
        self.connect_ms
            .append_option(times.connect.map(milliseconds));
        self.server_ms.append_option(times.server.map(milliseconds));
        self.client_ms.append_option(times.client.map(milliseconds));
    }

    fn append_answer(&mut self, answer: Option<Answer>) -> Result<(), ArrowError> {
        let (body, fields) = answer.map(|answer| (answer.body, answer.fields)).unzip();
        let is_known = body.is_some();
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
            // An answer that counts has no failure flags.
            no_persist: _,
            failure_class: _,
            failure_terminal: _,
            has_response: _,
        } = fields.unwrap_or_default();
        self.reward.append_option(reward);
        self.input_tokens.append_option(input_tokens);
        self.output_tokens.append_option(output_tokens);
        self.total_tokens.append_option(total_tokens);
        let integers: Option<Vec<i64>> = metrics.iter().map(|(_, value)| value.as_i64()).collect();
        let (floats, ints) = (&mut self.metrics, &mut self.integer_metrics);
        for (name, value) in &metrics {
            floats.keys().append_value(name);
            floats.values().append_value(value.as_f64());
        }
        floats.append(is_known)?;
        for ((name, _), value) in metrics.iter().zip(integers.iter().flatten()) {
            ints.keys().append_value(name);
            ints.values().append_value(*value);
        }
        ints.append(is_known && integers.is_some())?;
        self.truncated.append_option(truncated);
        self.masked.append_option(is_known.then_some(masked));
        self.perf.append_option(perf);
        self.info.append_option(is_known.then_some(info));
        append_text(&mut self.result, body)
    }
}

fn append_text(column: &mut StringViewBuilder, text: Option<Bytes>) -> Result<(), ArrowError> {
    let Some(text) = text else {
        column.append_null();
        return Ok(());
    };
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

/// Builder of the column `calls`: the calls within attempts.
#[derive(Debug, Default)]
struct CallsBuilder {
    lengths: Vec<usize>,
    columns: CallColumns,
}

impl CallsBuilder {
    /// Adds the calls of one attempt.
    fn append(&mut self, calls: Vec<CallRow>) {
        self.lengths.push(calls.len());
        calls.into_iter().for_each(|call| self.append_call(call));
    }

    fn append_call(&mut self, call: CallRow) {
        let CallRow {
            start,
            name,
            address,
            end,
        } = call;
        let columns = &mut self.columns;
        let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        columns.call.append_value(start.call.into());
        columns.turn.append_value(start.turn.into());
        columns.kind.append_value(start.kind.name());
        columns.name.append_option(name);
        columns.address.append_option(address);
        columns.retry.append_value(start.retry.into());
        columns
            .started_at
            .append_value(microseconds(start.started_at));
        let elapsed = end.as_ref().map(|end| end.elapsed);
        let finished = elapsed.map(|elapsed| microseconds(start.started_at + elapsed));
        columns.finished_at.append_option(finished);
        columns.latency_ms.append_option(elapsed.map(milliseconds));
        columns.outcome.append_value(outcome(end.as_ref()));
        let end = end.unwrap_or_default();
        columns
            .http_status
            .append_option(end.http_status.map(i32::from));
        columns.error.append_option(end.error);
        columns
            .input_tokens
            .append_option(end.input_tokens.map(count));
        columns
            .output_tokens
            .append_option(end.output_tokens.map(count));
        let is_known = elapsed.is_some();
        let bytes = |bytes: u64| is_known.then(|| count(bytes));
        columns
            .request_bytes
            .append_option(bytes(end.request_bytes));
        columns
            .response_bytes
            .append_option(bytes(end.response_bytes));
    }

    /// Takes the column so far.
    fn finish(&mut self) -> Result<ListArray, ArrowError> {
        let lengths = std::mem::take(&mut self.lengths);
        let nulls: NullBuffer = lengths.iter().map(|length| *length > 0).collect();
        let columns = self.columns.finish();
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
