//! The Arrow schemas of a run, and the names of their columns.
//!
//! Every schema is fixed: none depends on what an agent answers. The numbers of an answer are in [`METRICS`], a map, and the
//! answer itself is in [`RESULT`], as text. Every module that reads or writes rows uses them.

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef, TimeUnit};

/// Version of the layout of a run, as in `run.json`. A reader refuses others.
pub const SCHEMA_VERSION: u32 = 4;

/// The table with one row per input line. Each table of a run is a directory of Parquet parts.
pub const TASKS: &str = "tasks";
/// The table with one row per completed rollout.
pub const ROLLOUTS: &str = "rollouts";
/// The table with one row per attempt, whatever its outcome.
pub const ATTEMPTS: &str = "attempts";
/// The table with one row per call within an attempt of an agent that rollstream runs itself.
pub const CALLS: &str = "calls";

/// The tables of a run.
pub const TABLES: [&str; 4] = [TASKS, ROLLOUTS, ATTEMPTS, CALLS];

/// Index of the task within the sweep.
pub const TASK_INDEX: &str = "task_index";
/// Index of the rollout within its task.
pub const ROLLOUT_INDEX: &str = "rollout_index";
/// Name of the agent that the task is sent to.
pub const AGENT_NAME: &str = "agent_name";
/// First rollout index that an input line stands for.
pub const FIRST_ROLLOUT_INDEX: &str = "first_rollout_index";
/// Number of rollouts that an input line stands for.
pub const NUM_REPEATS: &str = "num_repeats";
/// Input file of a task, as given.
pub const SOURCE_FILE: &str = "source_file";
/// Line of a task in its input file, from 1.
pub const SOURCE_LINE: &str = "source_line";
/// Digest of the task's content, which does not depend on its place.
pub const TASK_DIGEST: &str = "task_digest";
/// JSON text that is sent, without what differs between the rollouts of a task.
pub const REQUEST: &str = "request";
/// Number of the attempt at a rollout, from 0.
pub const ATTEMPT: &str = "attempt";
/// Outcome of an attempt: `ok`, or the class of its failure.
pub const OUTCOME: &str = "outcome";
/// Status code of the HTTP answer, if there was one.
pub const HTTP_STATUS: &str = "http_status";
/// The error text.
pub const ERROR: &str = "error";
/// Whether the rollout failed with this attempt: its retries are exhausted, or the agent said never again.
pub const TERMINAL: &str = "terminal";
/// Whether the agent said never again, with `_ng_failure_terminal`.
pub const FAILURE_TERMINAL: &str = "failure_terminal";
/// Headers of the response that matter, as the text of a JSON object.
pub const RESPONSE_HEADERS: &str = "response_headers";
/// Time at which the request was sent.
pub const DISPATCHED_AT: &str = "dispatched_at";
/// Time at which the head of the answer arrived; null if none did.
pub const FIRST_BYTE_AT: &str = "first_byte_at";
/// Time at which the last byte of the answer arrived, or the failure was known; null if the collector ended first.
pub const FINISHED_AT: &str = "finished_at";
/// Milliseconds that the rollout was ready but waited for a place among the calls in flight.
pub const PERMIT_WAIT_MS: &str = "permit_wait_ms";
/// Milliseconds that the rollout was ready but held back by the agent's rate limits.
pub const RATE_WAIT_MS: &str = "rate_wait_ms";
/// Milliseconds that opening a connection took: 0 if an open one was used, the whole attempt if none could be opened.
pub const CONNECT_MS: &str = "connect_ms";
/// Milliseconds from the request, on an open connection, to the last byte of the answer; null if no connection could be
/// opened, which counts against no budget.
pub const SERVER_MS: &str = "server_ms";
/// Milliseconds that the collector itself spent: making the request, reading the answer, and
/// waiting for a core. Large values mean that the collector is short of processors.
pub const CLIENT_MS: &str = "client_ms";
/// Calls that were allowed in flight to the agent when this one was sent.
pub const CONCURRENCY_LIMIT: &str = "concurrency_limit";
/// The whole answer as JSON text if the agent flagged it as a failure; the beginning of an HTTP error as JSON text.
pub const ANSWER: &str = "answer";
/// The score of the rollout.
pub const REWARD: &str = "reward";
/// Tokens of the input, from the answer's `usage`.
pub const INPUT_TOKENS: &str = "input_tokens";
/// Tokens of the output, from the answer's `usage`.
pub const OUTPUT_TOKENS: &str = "output_tokens";
/// Tokens in all, from the answer's `usage`.
pub const TOTAL_TOKENS: &str = "total_tokens";
/// Time at which the request of the attempt that succeeded was sent.
pub const STARTED_AT: &str = "started_at";
/// Milliseconds from the request to the last byte of the answer.
pub const LATENCY_MS: &str = "latency_ms";
/// Every numeric or boolean top-level field of the answer and of its `response.usage`.
pub const METRICS: &str = "metrics";
/// The metrics as exact integers; null unless every one of them is an integer or a boolean.
pub const INTEGER_METRICS: &str = "integer_metrics";
/// Whether the answer's response was cut off; null if it does not say.
pub const TRUNCATED: &str = "truncated";
/// Whether the environment says that the reward tells nothing about the agent. By the rules of NeMo Gym 0.7 no metric of
/// quality counts the rollout.
pub const MASKED: &str = "masked";
/// NeMo Gym's measurements of the rollout's turns and tokens (`ng_perf`), a JSON object.
pub const PERF: &str = "perf";
/// Reward and numbers of the answer as the text of a JSON object, spelled as in the answer.
pub const INFO: &str = "info";
/// Number of a call within its attempt, from 0.
pub const CALL: &str = "call";
/// Number of the turn that a call belongs to, from 1; 0 before the first.
pub const TURN: &str = "turn";
/// Purpose of a call: `model`, `tool`, `step`, `verify`, `seed_session`, `reset`, `close` or `judge`.
pub const KIND: &str = "kind";
/// Model, tool or task name of a call; null if the collector ended before it noted the name.
pub const NAME: &str = "name";
/// Method and address of a call, without secrets; null if the collector ended before it noted them.
pub const ADDRESS: &str = "address";
/// Number of the retry that a call is, from 1; 0 for the first try.
pub const RETRY: &str = "retry";
/// Bytes of the request of a call.
pub const REQUEST_BYTES: &str = "request_bytes";
/// Bytes of the answer to a call.
pub const RESPONSE_BYTES: &str = "response_bytes";
/// The whole answer as JSON text, exactly as it came.
pub const RESULT: &str = "result";

/// Returns the type of timestamps: microseconds since the epoch, UTC.
pub fn timestamp() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some(Arc::from("UTC")))
}

/// Makes a schema on the first call, and hands out the same one from then on.
macro_rules! once {
    ($fields:expr) => {{
        static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| Arc::new(Schema::new($fields)));
        Arc::clone(&SCHEMA)
    }};
}

fn optional(name: &str, of: DataType) -> Field {
    Field::new(name, of, true)
}

fn text(name: &str) -> Field {
    Field::new(name, DataType::Utf8View, false)
}

fn integer(name: &str) -> Field {
    Field::new(name, DataType::Int64, false)
}

fn float(name: &str) -> Field {
    Field::new(name, DataType::Float64, false)
}

/// Returns the `entries` field of a map column, named as the Parquet specification names it, so that a
/// schema survives the way through a file.
pub fn map_entries(value: DataType) -> FieldRef {
    let key = Field::new("key", DataType::Utf8, false);
    let value = Field::new("value", value, true);
    let entries = DataType::Struct(Fields::from(vec![key, value]));
    Arc::new(Field::new("key_value", entries, false))
}

fn map(name: &str, value: DataType) -> Field {
    Field::new(name, DataType::Map(map_entries(value), false), true)
}

/// Returns the schema of `tasks`: one row per input line.
pub fn tasks() -> SchemaRef {
    once!(vec![
        integer(TASK_INDEX),
        text(AGENT_NAME),
        integer(FIRST_ROLLOUT_INDEX),
        integer(NUM_REPEATS),
        text(SOURCE_FILE),
        integer(SOURCE_LINE),
        text(TASK_DIGEST),
        text(REQUEST),
    ])
}

/// Returns the schema of the input of `run`, made by `expand`: one row per pending rollout.
pub fn pending() -> SchemaRef {
    once!(vec![
        integer(TASK_INDEX),
        integer(ROLLOUT_INDEX),
        text(AGENT_NAME),
        text(REQUEST),
    ])
}

/// Returns the schema of dispatch logs: a row for every dispatch before it is sent, so that lost ones are known.
pub fn dispatches() -> SchemaRef {
    once!(vec![
        integer(TASK_INDEX),
        integer(ROLLOUT_INDEX),
        integer(ATTEMPT),
        Field::new(DISPATCHED_AT, timestamp(), false),
        float(PERMIT_WAIT_MS),
        float(RATE_WAIT_MS),
    ])
}

fn attempt_fields() -> Vec<Field> {
    vec![
        integer(TASK_INDEX),
        integer(ROLLOUT_INDEX),
        integer(ATTEMPT),
        text(AGENT_NAME),
        text(OUTCOME),
        optional(HTTP_STATUS, DataType::Int32),
        optional(ERROR, DataType::Utf8View),
        Field::new(TERMINAL, DataType::Boolean, false),
        Field::new(FAILURE_TERMINAL, DataType::Boolean, false),
        optional(RESPONSE_HEADERS, DataType::Utf8View),
        Field::new(DISPATCHED_AT, timestamp(), false),
        optional(FIRST_BYTE_AT, timestamp()),
        optional(FINISHED_AT, timestamp()),
        float(PERMIT_WAIT_MS),
        float(RATE_WAIT_MS),
        optional(CONNECT_MS, DataType::Float64),
        optional(SERVER_MS, DataType::Float64),
        optional(CLIENT_MS, DataType::Float64),
        optional(CONCURRENCY_LIMIT, DataType::Int32),
        optional(ANSWER, DataType::Utf8View),
    ]
}

/// Returns the schema of `attempts`: one row per dispatch.
pub fn attempts() -> SchemaRef {
    once!(attempt_fields())
}

/// Returns the columns of `calls` without those of the attempt that a call belongs to.
pub fn call_fields() -> Fields {
    let count = |name: &str| optional(name, DataType::Int64);
    Fields::from(vec![
        integer(CALL),
        integer(TURN),
        text(KIND),
        optional(NAME, DataType::Utf8View),
        optional(ADDRESS, DataType::Utf8View),
        text(OUTCOME),
        optional(HTTP_STATUS, DataType::Int32),
        optional(ERROR, DataType::Utf8View),
        integer(RETRY),
        Field::new(STARTED_AT, timestamp(), false),
        optional(FINISHED_AT, timestamp()),
        optional(LATENCY_MS, DataType::Float64),
        count(INPUT_TOKENS),
        count(OUTPUT_TOKENS),
        count(REQUEST_BYTES),
        count(RESPONSE_BYTES),
    ])
}

/// Returns the field for the calls of an attempt, within its row; null if its agent runs elsewhere.
pub fn call_list() -> FieldRef {
    let item = DataType::Struct(call_fields());
    Arc::new(Field::new("item", item, false))
}

/// Returns the schema of `calls`: one row per call within an attempt of an agent that rollstream runs itself.
pub fn calls() -> SchemaRef {
    once!({
        let attempt = [
            integer(TASK_INDEX),
            integer(ROLLOUT_INDEX),
            integer(ATTEMPT),
            text(AGENT_NAME),
        ];
        let attempt = attempt.into_iter().map(Arc::new);
        let call = call_fields();
        attempt.chain(call.iter().cloned()).collect::<Fields>()
    })
}

/// Returns the schema of the output of `run`, which the journal holds: attempts and the answers of successful ones.
pub fn outcomes() -> SchemaRef {
    once!({
        let mut fields = attempt_fields();
        fields.extend([
            optional(REWARD, DataType::Float64),
            optional(INPUT_TOKENS, DataType::Int64),
            optional(OUTPUT_TOKENS, DataType::Int64),
            optional(TOTAL_TOKENS, DataType::Int64),
            map(METRICS, DataType::Float64),
            map(INTEGER_METRICS, DataType::Int64),
            optional(TRUNCATED, DataType::Boolean),
            optional(MASKED, DataType::Boolean),
            optional(PERF, DataType::Utf8View),
            optional(INFO, DataType::Utf8View),
            optional(RESULT, DataType::Utf8View),
            Field::new(CALLS, DataType::List(call_list()), true),
        ]);
        fields
    })
}

/// Returns the schema of `rollouts`: one row per completed rollout.
pub fn rollouts() -> SchemaRef {
    once!(vec![
        integer(TASK_INDEX),
        integer(ROLLOUT_INDEX),
        text(AGENT_NAME),
        integer(ATTEMPT),
        optional(REWARD, DataType::Float64),
        optional(INPUT_TOKENS, DataType::Int64),
        optional(OUTPUT_TOKENS, DataType::Int64),
        optional(TOTAL_TOKENS, DataType::Int64),
        Field::new(STARTED_AT, timestamp(), false),
        float(LATENCY_MS),
        map(METRICS, DataType::Float64),
        map(INTEGER_METRICS, DataType::Int64),
        optional(TRUNCATED, DataType::Boolean),
        optional(MASKED, DataType::Boolean),
        optional(PERF, DataType::Utf8View),
        text(INFO),
        text(RESULT),
    ])
}

/// Returns the schema of the output of `land`: one row per published object.
pub fn landed() -> SchemaRef {
    once!(vec![
        text("table_name"),
        text("path"),
        integer("num_rows"),
        integer("num_bytes"),
    ])
}
