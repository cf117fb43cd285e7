//! The tables that the rules are written over, as `queries/health` knows them. Texts are no views: a sort would count
//! the buffer that views share for each of its batches, and go to disk for nothing.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryBuilder, BooleanBuilder, Float64Builder, Int64Builder, StringBuilder,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;

macro_rules! column {
    (key, $($rest:tt)*) => { column!(@ $($rest)*, BinaryBuilder, DataType::Binary, &'a [u8]) };
    (text, $($rest:tt)*) => { column!(@ $($rest)*, StringBuilder, DataType::Utf8, &'a str) };
    (count, $($rest:tt)*) => { column!(@ $($rest)*, Int64Builder, DataType::Int64, i64) };
    (real, $($rest:tt)*) => { column!(@ $($rest)*, Float64Builder, DataType::Float64, f64) };
    (truth, $($rest:tt)*) => { column!(@ $($rest)*, BooleanBuilder, DataType::Boolean, bool) };
    (@ builder, $builder:ty, $type:expr, $value:ty) => { $builder };
    (@ kind, $builder:ty, $type:expr, $value:ty) => { $type };
    (@ value, $builder:ty, $type:expr, $value:ty) => { Option<$value> };
}

/// A table, its columns, and a row of it.
macro_rules! table {
    ($(#[$about:meta])* $table:ident, $row:ident { $($column:ident: $kind:ident,)* }) => {
        $(#[$about])*
        pub(super) struct $row<'a> {
            $(pub $column: column!($kind, value),)*
        }

        #[derive(Default)]
        pub(super) struct $table {
            $($column: column!($kind, builder),)*
        }

        impl $table {
            pub fn schema() -> SchemaRef {
                let fields = vec![$(Field::new(stringify!($column), column!($kind, kind), true),)*];
                Arc::new(Schema::new(fields))
            }

            pub fn add(&mut self, row: $row<'_>) {
                let $row { $($column,)* } = row;
                $(self.$column.append_option($column);)*
            }

            pub fn take(&mut self) -> Result<RecordBatch, ArrowError> {
                let columns: Vec<ArrayRef> = vec![$(Arc::new(self.$column.finish()),)*];
                RecordBatch::try_new(Self::schema(), columns)
            }
        }
    };
}

table! {
    /// A record: one line that claims to be a rollout.
    Records, RecordRow {
        record: key,
        source_file: text,
        source_line: count,
        task: text,
        rollout: text,
        stage: text,
        rollout_id: text,
        unreadable: text,
        bad_trajectory: text,
        trajectory_observed: truth,
        turns_observed: truth,
        calls_observed: truth,
        scope_complete: truth,
        num_calls: count,
        active_turns: count,
        references: count,
        owned_calls: count,
        turn_calls: count,
        turns_bound: truth,
        turn_input_tokens: count,
        turn_output_tokens: count,
        uncounted_turn_calls: count,
        input_tokens: count,
        output_tokens: count,
        successful_turn_calls: count,
        replayed_calls: count,
    }
}

table! {
    /// A turn of an agent.
    Turns, TurnRow {
        record: key,
        position: count,
        is_observed: truth,
        turn: count,
        has_text: truth,
        has_tool_call: truth,
    }
}

table! {
    /// A call of a model.
    Calls, CallRow {
        record: key,
        position: count,
        owned: count,
        is_last: truth,
        is_observed: truth,
        call_id: text,
        model_ref: text,
        started_at: real,
        status_code: count,
        error_category: text,
        finish_reason: text,
        input_tokens: count,
        output_tokens: count,
        failed: truth,
        successful: truth,
        has_response: truth,
        has_content: truth,
        unreadable: text,
    }
}

table! {
    /// What turns and invocations refer to as a call, where it is not exactly one.
    Unbound, UnboundRow {
        record: key,
        position: count,
        call_id: text,
        matches: count,
    }
}

table! {
    /// What the producer of a trajectory says that it lacks.
    Gaps, GapRow {
        record: key,
        position: count,
        is_observed: truth,
        code: text,
        invocation_id: text,
        detail: text,
    }
}

table! {
    /// What came of a record, for the rules of tasks.
    Verdicts, VerdictRow {
        task: text,
        task_name: text,
        rollout: text,
        verdict: text,
        calls_known: truth,
        successful_calls: count,
    }
}
