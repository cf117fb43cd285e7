use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arrow::array::{
    ArrayRef, ArrowPrimitiveType, BooleanBuilder, Float64Builder, Int32Builder, Int64Builder,
    MapBuilder, MapFieldNames, PrimitiveBuilder, RecordBatch, StringBuilder, StringViewBuilder,
    TimestampMicrosecondBuilder,
};
use arrow::buffer::Buffer;
use arrow::datatypes::{Float64Type, Int64Type};
use arrow::error::ArrowError;
use bytes::Bytes;

use super::row::{Answered, OK, Outcome, Times, Verdict};
use super::turns::TurnsBuilder;
use crate::schema;

/// Answers of this many bytes and more become a buffer of their batch as they are; smaller ones
/// are copied together, since a buffer of its own costs more than such a copy.
pub(super) const ADOPTED_BYTES: usize = 32 * 1024;

/// Builds batches of [`schema::outcomes`].
#[derive(Debug)]
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
    dispatched_at: TimestampMicrosecondBuilder,
    first_byte_at: TimestampMicrosecondBuilder,
    finished_at: TimestampMicrosecondBuilder,
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
    metrics: MapBuilder<StringBuilder, PrimitiveBuilder<Float64Type>>,
    integer_metrics: MapBuilder<StringBuilder, PrimitiveBuilder<Int64Type>>,
    truncated: BooleanBuilder,
    masked: BooleanBuilder,
    perf: StringViewBuilder,
    info: StringViewBuilder,
    result: StringViewBuilder,
    turns: TurnsBuilder,
    rows: usize,
    bytes: usize,
}

fn map_builder<T: ArrowPrimitiveType>() -> MapBuilder<StringBuilder, PrimitiveBuilder<T>> {
    let names = MapFieldNames {
        entry: "key_value".into(),
        key: "key".into(),
        value: "value".into(),
    };
    MapBuilder::new(
        Some(names),
        StringBuilder::new(),
        PrimitiveBuilder::<T>::new(),
    )
}

pub(super) fn milliseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e6
}

pub(super) fn microseconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

impl Default for OutcomeBatchBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl OutcomeBatchBuilder {
    /// An empty batch.
    pub fn new() -> Self {
        let utc = || TimestampMicrosecondBuilder::new().with_data_type(schema::timestamp());
        Self {
            task_index: Int64Builder::new(),
            rollout_index: Int64Builder::new(),
            attempt: Int64Builder::new(),
            agent_name: StringViewBuilder::new(),
            outcome: StringViewBuilder::new(),
            http_status: Int32Builder::new(),
            error: StringViewBuilder::new(),
            terminal: BooleanBuilder::new(),
            failure_terminal: BooleanBuilder::new(),
            response_headers: StringViewBuilder::new(),
            dispatched_at: utc(),
            first_byte_at: utc(),
            finished_at: utc(),
            permit_wait_ms: Float64Builder::new(),
            rate_wait_ms: Float64Builder::new(),
            connect_ms: Float64Builder::new(),
            server_ms: Float64Builder::new(),
            client_ms: Float64Builder::new(),
            concurrency_limit: Int32Builder::new(),
            answer: StringViewBuilder::new(),
            reward: Float64Builder::new(),
            input_tokens: Int64Builder::new(),
            output_tokens: Int64Builder::new(),
            total_tokens: Int64Builder::new(),
            metrics: map_builder::<Float64Type>(),
            integer_metrics: map_builder::<Int64Type>(),
            truncated: BooleanBuilder::new(),
            masked: BooleanBuilder::new(),
            perf: StringViewBuilder::new(),
            info: StringViewBuilder::new(),
            result: StringViewBuilder::new(),
            turns: TurnsBuilder::new(),
            rows: 0,
            bytes: 0,
        }
    }

    /// Rows so far.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// No rows yet.
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
    /// The answer's body is not UTF-8; the row is then not added in part, so the batch is lost.
    pub fn append(&mut self, outcome: Outcome) -> Result<(), ArrowError> {
        let Outcome {
            task_index,
            rollout_index,
            attempt,
            agent_name,
            http_status,
            response_headers,
            dispatched_at,
            times,
            concurrency_limit,
            turns,
            verdict,
        } = outcome;
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
        self.turns.append(turns);
        match verdict {
            Verdict::Ok(answered) => {
                self.outcome.append_value(OK);
                self.error.append_null();
                self.terminal.append_value(false);
                self.failure_terminal.append_value(false);
                self.answer.append_null();
                self.append_answer(answered)
            }
            Verdict::Failed {
                class,
                error,
                terminal,
                failure_terminal,
                answer,
            } => {
                self.outcome.append_value(class);
                self.error.append_value(error);
                self.terminal.append_value(terminal);
                self.failure_terminal.append_value(failure_terminal);
                match answer {
                    Some(answer) => {
                        self.bytes += answer.len();
                        append_text(&mut self.answer, answer)?;
                    }
                    None => self.answer.append_null(),
                }
                self.append_no_answer()
            }
        }
    }

    fn append_times(&mut self, dispatched_at: SystemTime, times: Times) {
        let after = |span: Duration| microseconds(dispatched_at + span);
        let finished = times.connect.or(times.server);
        let finished =
            finished.map(|_| times.connect.unwrap_or_default() + times.server.unwrap_or_default());
        self.dispatched_at.append_value(microseconds(dispatched_at));
        self.first_byte_at
            .append_option(times.first_byte.map(after));
        self.finished_at.append_option(finished.map(after));
        self.permit_wait_ms
            .append_value(milliseconds(times.permit_wait));
        self.rate_wait_ms
            .append_value(milliseconds(times.rate_wait));
        self.connect_ms
            .append_option(times.connect.map(milliseconds));
        self.server_ms.append_option(times.server.map(milliseconds));
        self.client_ms.append_option(times.client.map(milliseconds));
    }

    fn append_answer(&mut self, Answered { result, fields }: Answered) -> Result<(), ArrowError> {
        self.reward.append_option(fields.reward);
        self.input_tokens.append_option(fields.input_tokens);
        self.output_tokens.append_option(fields.output_tokens);
        self.total_tokens.append_option(fields.total_tokens);
        let integers = fields
            .metrics
            .iter()
            .all(|(_, number)| number.as_i64().is_some());
        for (name, number) in &fields.metrics {
            self.metrics.keys().append_value(name);
            self.metrics.values().append_value(number.as_f64());
            if let Some(value) = number.as_i64().filter(|_| integers) {
                self.integer_metrics.keys().append_value(name);
                self.integer_metrics.values().append_value(value);
            }
        }
        self.metrics.append(true)?;
        self.integer_metrics.append(integers)?;
        self.truncated.append_option(fields.truncated);
        self.masked.append_value(fields.masked);
        self.perf.append_option(fields.perf);
        self.info.append_value(&fields.info);
        self.bytes += result.len() + fields.info.len();
        append_text(&mut self.result, result)
    }

    fn append_no_answer(&mut self) -> Result<(), ArrowError> {
        self.reward.append_null();
        self.input_tokens.append_null();
        self.output_tokens.append_null();
        self.total_tokens.append_null();
        self.metrics.append(false)?;
        self.integer_metrics.append(false)?;
        self.truncated.append_null();
        self.masked.append_null();
        self.perf.append_null();
        self.info.append_null();
        self.result.append_null();
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
            Arc::new(self.rollout_index.finish()),
            Arc::new(self.attempt.finish()),
            Arc::new(self.agent_name.finish()),
            Arc::new(self.outcome.finish()),
            Arc::new(self.http_status.finish()),
            Arc::new(self.error.finish()),
            Arc::new(self.terminal.finish()),
            Arc::new(self.failure_terminal.finish()),
            Arc::new(self.response_headers.finish()),
            Arc::new(self.dispatched_at.finish()),
            Arc::new(self.first_byte_at.finish()),
            Arc::new(self.finished_at.finish()),
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
            Arc::new(self.metrics.finish()),
            Arc::new(self.integer_metrics.finish()),
            Arc::new(self.truncated.finish()),
            Arc::new(self.masked.finish()),
            Arc::new(self.perf.finish()),
            Arc::new(self.info.finish()),
            Arc::new(self.result.finish()),
            Arc::new(self.turns.finish()?),
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
