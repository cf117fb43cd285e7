//! The Arrow schemas of a run, and the names of their columns.
//!
//! Every schema is fixed: none depends on what an agent answers. What an answer measures is in
//! [`METRICS`], a map, and the answer itself is in [`RESULT`], as text.

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef, TimeUnit};

/// Version of the layout of a run; stands in `run.json`, and a reader refuses others.
pub const SCHEMA_VERSION: u32 = 3;

/// Tables of a run, each a directory of Parquet parts.
pub const TASKS: &str = "tasks";
/// One row per completed rollout.
pub const ROLLOUTS: &str = "rollouts";
/// One row per dispatch, whatever became of it.
pub const ATTEMPTS: &str = "attempts";
/// One row per call within an attempt of an agent that rollstream runs itself.
pub const TURNS: &str = "turns";

/// The tables of a run.
pub const TABLES: [&str; 4] = [TASKS, ROLLOUTS, ATTEMPTS, TURNS];

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
/// Digest of the task's content, the same wherever the task stands.
pub const TASK_DIGEST: &str = "task_digest";
/// JSON text that is sent, but for what differs between the rollouts of a task.
pub const REQUEST: &str = "request";
/// Number of the attempt at a rollout, from 0.
pub const ATTEMPT: &str = "attempt";
/// What became of an attempt: `ok`, or the class of its failure.
pub const OUTCOME: &str = "outcome";
/// Status code of the HTTP answer, where there was one.
pub const HTTP_STATUS: &str = "http_status";
/// What went wrong, in words.
pub const ERROR: &str = "error";
/// The rollout has failed with this attempt: a budget is spent, or the agent asked for no further attempt.
pub const TERMINAL: &str = "terminal";
/// The agent said never again, with `_ng_failure_terminal`.
pub const FAILURE_TERMINAL: &str = "failure_terminal";
/// Headers of the response that matter, as the text of a JSON object.
pub const RESPONSE_HEADERS: &str = "response_headers";
/// When the request was sent.
pub const DISPATCHED_AT: &str = "dispatched_at";
/// When the head of the answer was there; none where there was none.
pub const FIRST_BYTE_AT: &str = "first_byte_at";
/// When the last byte of the answer was there, or the failure was known; none where the collector
/// did not live to see it.
pub const FINISHED_AT: &str = "finished_at";
/// Milliseconds that the rollout was ready but waited for its turn.
pub const PERMIT_WAIT_MS: &str = "permit_wait_ms";
/// Milliseconds that the rollout was ready but held back by the agent's rate limits.
pub const RATE_WAIT_MS: &str = "rate_wait_ms";
/// Milliseconds that opening a connection took; 0 where an open one was used, and the whole attempt where none came
/// about.
pub const CONNECT_MS: &str = "connect_ms";
/// Milliseconds from the request, on an open connection, to the last byte of the answer; none where no connection came
/// about, which counts against no budget.
pub const SERVER_MS: &str = "server_ms";
/// Milliseconds that the collector itself spent: making the request, reading the answer, and
/// waiting for a core. Large values mean that the collector is short of processors.
pub const CLIENT_MS: &str = "client_ms";
/// Calls that were allowed in flight to the agent when this one was sent.
pub const CONCURRENCY_LIMIT: &str = "concurrency_limit";
/// The whole answer as JSON text where the agent flagged it as a failure; the beginning of an HTTP error as a JSON text.
pub const ANSWER: &str = "answer";
/// The score of the rollout.
pub const REWARD: &str = "reward";
/// Tokens of the input, from the answer's `usage`.
pub const INPUT_TOKENS: &str = "input_tokens";
/// Tokens of the output, from the answer's `usage`.
pub const OUTPUT_TOKENS: &str = "output_tokens";
/// Tokens in all, from the answer's `usage`.
pub const TOTAL_TOKENS: &str = "total_tokens";
/// When the request of the attempt that succeeded was sent.
pub const STARTED_AT: &str = "started_at";
/// Milliseconds from the request to the last byte of the answer.
pub const LATENCY_MS: &str = "latency_ms";
/// Every numeric or boolean top-level field of the answer and of its `response.usage`.
pub const METRICS: &str = "metrics";
/// The metrics as exact integers; null unless every one of them is an integer or a boolean.
pub const INTEGER_METRICS: &str = "integer_metrics";
/// The answer's response was cut off; null where it does not say.
pub const TRUNCATED: &str = "truncated";
/// The environment says that the reward tells nothing of the agent: where the rules of NeMo Gym 0.7 hold, the rollout is
/// in no metric of quality.
pub const MASKED: &str = "masked";
/// What NeMo Gym observed of the rollout's turns and tokens (`ng_perf`), a JSON object.
pub const PERF: &str = "perf";
/// Reward and numbers of the answer as the text of a JSON object, spelled as in the answer.
pub const INFO: &str = "info";
/// Number of a call within its attempt, from 0.
pub const CALL: &str = "call";
/// Number of the turn that a call belongs to, from 1; 0 before the first.
pub const TURN: &str = "turn";
/// What a call is for: `model`, `tool`, `step`, `verify`, `seed_session`, `reset` or `close`.
pub const KIND: &str = "kind";
/// The model, tool or task name of a call; null where the collector did not live to say.
pub const NAME: &str = "name";
/// Method and address of a call, without secrets; null likewise.
pub const ADDRESS: &str = "address";
/// How many times the same call was sent before within its attempt.
pub const REPETITION: &str = "repetition";
/// Bytes of the request of a call.
pub const REQUEST_BYTES: &str = "request_bytes";
/// Bytes of the answer to a call.
pub const RESPONSE_BYTES: &str = "response_bytes";
/// The whole answer as JSON text, exactly as it came.
pub const RESULT: &str = "result";

/// Microseconds since the epoch, UTC.
pub fn timestamp() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some(Arc::from("UTC")))
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

/// The `entries` field of a map column, named as the Parquet specification names it, so that a
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

/// `tasks`: one row per input line.
pub fn tasks() -> SchemaRef {
    static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
        Arc::new(Schema::new(vec![
            integer(TASK_INDEX),
            text(AGENT_NAME),
            integer(FIRST_ROLLOUT_INDEX),
            integer(NUM_REPEATS),
            text(SOURCE_FILE),
            integer(SOURCE_LINE),
            text(TASK_DIGEST),
            text(REQUEST),
        ]))
    });
    Arc::clone(&SCHEMA)
}

/// What `expand` gives and `run` takes: one row per rollout still pending.
pub fn pending() -> SchemaRef {
    static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
        Arc::new(Schema::new(vec![
            integer(TASK_INDEX),
            integer(ROLLOUT_INDEX),
            text(AGENT_NAME),
            text(REQUEST),
        ]))
    });
    Arc::clone(&SCHEMA)
}

/// What the journal holds of every dispatch from before it is sent, so that one whose end nobody
/// saw is known.
pub fn dispatches() -> SchemaRef {
    static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
        Arc::new(Schema::new(vec![
            integer(TASK_INDEX),
            integer(ROLLOUT_INDEX),
            integer(ATTEMPT),
            Field::new(DISPATCHED_AT, timestamp(), false),
            float(PERMIT_WAIT_MS),
            float(RATE_WAIT_MS),
        ]))
    });
    Arc::clone(&SCHEMA)
}

fn attempt_fields() -> Vec<Field> {
    vec![
        integer(TASK_INDEX),
        integer(ROLLOUT_INDEX),
        integer(ATTEMPT),
        text(AGENT_NAME),
        text(OUTCOME),
        Field::new(HTTP_STATUS, DataType::Int32, true),
        Field::new(ERROR, DataType::Utf8View, true),
        Field::new(TERMINAL, DataType::Boolean, false),
        Field::new(FAILURE_TERMINAL, DataType::Boolean, false),
        Field::new(RESPONSE_HEADERS, DataType::Utf8View, true),
        Field::new(DISPATCHED_AT, timestamp(), false),
        Field::new(FIRST_BYTE_AT, timestamp(), true),
        Field::new(FINISHED_AT, timestamp(), true),
        float(PERMIT_WAIT_MS),
        float(RATE_WAIT_MS),
        Field::new(CONNECT_MS, DataType::Float64, true),
        Field::new(SERVER_MS, DataType::Float64, true),
        Field::new(CLIENT_MS, DataType::Float64, true),
        Field::new(CONCURRENCY_LIMIT, DataType::Int32, true),
        Field::new(ANSWER, DataType::Utf8View, true),
    ]
}

/// `attempts`: one row per dispatch.
pub fn attempts() -> SchemaRef {
    static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| Arc::new(Schema::new(attempt_fields())));
    Arc::clone(&SCHEMA)
}

/// What `turns` has beyond the attempt that a call belongs to.
pub fn turn_fields() -> Fields {
    let count = |name: &str| Field::new(name, DataType::Int64, true);
    Fields::from(vec![
        integer(CALL),
        integer(TURN),
        text(KIND),
        Field::new(NAME, DataType::Utf8View, true),
        Field::new(ADDRESS, DataType::Utf8View, true),
        text(OUTCOME),
        Field::new(HTTP_STATUS, DataType::Int32, true),
        Field::new(ERROR, DataType::Utf8View, true),
        integer(REPETITION),
        Field::new(STARTED_AT, timestamp(), false),
        Field::new(FINISHED_AT, timestamp(), true),
        Field::new(LATENCY_MS, DataType::Float64, true),
        count(INPUT_TOKENS),
        count(OUTPUT_TOKENS),
        count(REQUEST_BYTES),
        count(RESPONSE_BYTES),
    ])
}

/// The calls of an attempt, within its row; null where its agent runs elsewhere.
pub fn turn_list() -> FieldRef {
    let item = DataType::Struct(turn_fields());
    Arc::new(Field::new("item", item, false))
}

/// `turns`: one row per call within an attempt of an agent that rollstream runs itself.
pub fn turns() -> SchemaRef {
    static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
        let attempt = [
            integer(TASK_INDEX),
            integer(ROLLOUT_INDEX),
            integer(ATTEMPT),
            text(AGENT_NAME),
        ];
        let attempt = attempt.into_iter().map(Arc::new);
        let turn = turn_fields();
        Arc::new(Schema::new(
            attempt.chain(turn.iter().cloned()).collect::<Fields>(),
        ))
    });
    Arc::clone(&SCHEMA)
}

/// What `run` gives and the journal holds: an attempt and, where it succeeded, its answer.
pub fn outcomes() -> SchemaRef {
    static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
        let mut fields = attempt_fields();
        fields.extend([
            Field::new(REWARD, DataType::Float64, true),
            Field::new(INPUT_TOKENS, DataType::Int64, true),
            Field::new(OUTPUT_TOKENS, DataType::Int64, true),
            Field::new(TOTAL_TOKENS, DataType::Int64, true),
            map(METRICS, DataType::Float64),
            map(INTEGER_METRICS, DataType::Int64),
            Field::new(TRUNCATED, DataType::Boolean, true),
            Field::new(MASKED, DataType::Boolean, true),
            Field::new(PERF, DataType::Utf8View, true),
            Field::new(INFO, DataType::Utf8View, true),
            Field::new(RESULT, DataType::Utf8View, true),
            Field::new(TURNS, DataType::List(turn_list()), true),
        ]);
        Arc::new(Schema::new(fields))
    });
    Arc::clone(&SCHEMA)
}

/// What journals of earlier versions hold: the same without what was added since.
pub fn earlier_outcomes() -> SchemaRef {
    static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
        let outcomes = outcomes();
        let fields = outcomes.fields().iter().cloned();
        let fields = fields.filter(|field| ![MASKED, PERF].contains(&field.name().as_str()));
        Arc::new(Schema::new(fields.collect::<Fields>()))
    });
    Arc::clone(&SCHEMA)
}

/// `rollouts`: one row per completed rollout.
pub fn rollouts() -> SchemaRef {
    static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
        Arc::new(Schema::new(vec![
            integer(TASK_INDEX),
            integer(ROLLOUT_INDEX),
            text(AGENT_NAME),
            integer(ATTEMPT),
            Field::new(REWARD, DataType::Float64, true),
            Field::new(INPUT_TOKENS, DataType::Int64, true),
            Field::new(OUTPUT_TOKENS, DataType::Int64, true),
            Field::new(TOTAL_TOKENS, DataType::Int64, true),
            Field::new(STARTED_AT, timestamp(), false),
            float(LATENCY_MS),
            map(METRICS, DataType::Float64),
            map(INTEGER_METRICS, DataType::Int64),
            Field::new(TRUNCATED, DataType::Boolean, true),
            Field::new(MASKED, DataType::Boolean, true),
            Field::new(PERF, DataType::Utf8View, true),
            text(INFO),
            text(RESULT),
        ]))
    });
    Arc::clone(&SCHEMA)
}

/// What `land` gives: one row per object that it published.
pub fn landed() -> SchemaRef {
    static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
        Arc::new(Schema::new(vec![
            text("table_name"),
            text("path"),
            integer("num_rows"),
            integer("num_bytes"),
        ]))
    });
    Arc::clone(&SCHEMA)
}
