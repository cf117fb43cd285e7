//! The tables that the rules in `queries/health` read, and the keys of their records. Text columns are not views: a sort
//! would count the buffer that views share once per batch, and spill to disk for nothing.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryBuilder, BooleanBuilder, Float64Builder, Int64Builder, StringBuilder,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion::error::Result as QueryResult;

use crate::json::{quote, unquote};

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

/// Defines a table, its columns, and its row.
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

            pub fn take(&mut self) -> QueryResult<RecordBatch> {
                let columns: Vec<ArrayRef> = vec![$(Arc::new(self.$column.finish()),)*];
                Ok(RecordBatch::try_new(Self::schema(), columns)?)
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
    /// A reference of a turn or an invocation that does not match exactly one call.
    Unbound, UnboundRow {
        record: key,
        position: count,
        call_id: text,
        matches: count,
    }
}

table! {
    /// A gap that the producer of a trajectory reports.
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
    /// The verdict of a record, for the rules of tasks.
    Verdicts, VerdictRow {
        task: text,
        task_name: text,
        rollout: text,
        verdict: text,
        calls_known: truth,
        successful_calls: count,
    }
}

/// The index of a task, a rollout or a stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Index {
    Whole(i128),
    Text(String),
}

impl Default for Index {
    fn default() -> Self {
        Self::Whole(0)
    }
}

/// The indices of a record.
#[derive(Debug, Clone, Default)]
pub(super) struct Indices {
    pub task: Index,
    pub rollout: Index,
    pub stage: Option<Index>,
}

impl Index {
    /// Reads a JSON text; `None` for what is neither a whole number nor a text.
    pub fn read(text: &str) -> Option<Self> {
        match text {
            "true" => Some(Self::Whole(1)),
            "false" => Some(Self::Whole(0)),
            _ => match unquote(text) {
                Some(text) => Some(Self::Text(text.into_owned())),
                None => text.parse().ok().map(Self::Whole),
            },
        }
    }

    /// Returns the index as JSON text.
    pub fn json(&self) -> String {
        match self {
            Self::Whole(number) => number.to_string(),
            Self::Text(text) => quote(text),
        }
    }

    /// Returns the index as it appears within a text.
    pub fn plain(&self) -> String {
        match self {
            Self::Whole(number) => number.to_string(),
            Self::Text(text) => text.clone(),
        }
    }

    /// Appends bytes that sort as indices do: numbers by value, then texts by code point.
    fn write_key(&self, key: &mut Vec<u8>) {
        match self {
            Self::Whole(number) => {
                key.push(0);
                key.extend((number ^ i128::MIN).to_be_bytes());
            }
            Self::Text(text) => {
                key.push(1);
                for byte in text.bytes() {
                    key.push(byte);
                    // Marks a zero byte, so that the end of a text sorts before every continuation.
                    if byte == 0 {
                        key.push(1);
                    }
                }
                key.extend([0, 0]);
            }
        }
    }
}

/// Returns unique bytes that sort as verdicts do: by task, rollout, stage and place.
pub(super) fn key(indices: &Indices, ordinal: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(64);
    indices.task.write_key(&mut key);
    indices.rollout.write_key(&mut key);
    match &indices.stage {
        Some(stage) => stage.write_key(&mut key),
        // NeMo Gym sorts a record without a stage by the text of Python's None.
        None => Index::Text("None".to_owned()).write_key(&mut key),
    }
    key.extend(ordinal.to_be_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_numbers_by_value_and_before_texts() {
        let sorted = [
            "-9",
            "-1",
            "0",
            "9",
            "10",
            "170141183",
            r#""""#,
            r#""\u0000""#,
            r#""\u0000a""#,
            r#""\u0001""#,
            r#""1""#,
            r#""a""#,
            r#""ab""#,
            r#""é""#,
        ];
        let keys: Vec<Vec<u8>> = sorted
            .iter()
            .map(|text| {
                let task = Index::read(text).unwrap();
                key(
                    &Indices {
                        task,
                        ..Indices::default()
                    },
                    7,
                )
            })
            .collect();
        assert!(keys.is_sorted());
        assert_eq!(Index::read("1.5"), None);
        assert_eq!(Index::read("null"), None);
    }
}
