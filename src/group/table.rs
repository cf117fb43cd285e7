//! Groups as a table of nested lists, whose schema never depends on what an agent answers.

use std::sync::{Arc, LazyLock};

use arrow::array::{
    ArrayRef, BooleanBuilder, Float64Builder, Int64Builder, ListArray, ListBuilder, RecordBatch,
    StringViewBuilder, StructArray, UInt32Builder,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use arrow::error::ArrowError;
use serde_json::Value;

use super::PromptGroup;
use crate::model::Message;
use crate::schema::{AGENT_NAME, ATTEMPT, REWARD, ROLLOUT_INDEX, TASK_INDEX, TRUNCATED};

/// Name of the table.
pub const GROUPS: &str = "groups";

fn item(item: DataType) -> FieldRef {
    Arc::new(Field::new("item", item, true))
}

fn message_fields() -> Fields {
    Fields::from(vec![
        Field::new("role", DataType::Utf8View, false),
        Field::new("content", DataType::Utf8View, false),
        Field::new("token_ids", DataType::List(item(DataType::UInt32)), true),
        Field::new("logprobs", DataType::List(item(DataType::Float64)), true),
        Field::new("token_count", DataType::Int64, false),
    ])
}

fn messages() -> FieldRef {
    item(DataType::Struct(message_fields()))
}

fn completion_fields() -> Fields {
    Fields::from(vec![
        Field::new(ROLLOUT_INDEX, DataType::Int64, false),
        Field::new(ATTEMPT, DataType::Int64, false),
        Field::new("message_log", DataType::List(messages()), false),
        Field::new("env_extras", DataType::Utf8View, false),
        Field::new(TRUNCATED, DataType::Boolean, false),
        Field::new(REWARD, DataType::Float64, false),
    ])
}

fn completions() -> FieldRef {
    item(DataType::Struct(completion_fields()))
}

/// Returns the schema of `groups`: one row per prompt, with all its rollouts. Free-form values are JSON text.
pub fn groups() -> SchemaRef {
    static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
        Arc::new(Schema::new(vec![
            Field::new(TASK_INDEX, DataType::Int64, false),
            Field::new(AGENT_NAME, DataType::Utf8View, false),
            Field::new("prompt_idx", DataType::Int64, false),
            Field::new("task_name", DataType::Utf8View, true),
            Field::new("prompt", DataType::List(messages()), false),
            Field::new("extra_env_info", DataType::Utf8View, false),
            Field::new("num_rollouts", DataType::Int64, false),
            Field::new("completions", DataType::List(completions()), false),
            Field::new("rollout_metrics", DataType::Utf8View, false),
        ]))
    });
    Arc::clone(&SCHEMA)
}

/// Converts groups to a batch of [`groups`].
///
/// # Errors
/// There are too many messages for one batch.
pub fn batch(groups_of: &[PromptGroup]) -> Result<RecordBatch, ArrowError> {
    let integers = |of: fn(&PromptGroup) -> i64| -> ArrayRef {
        let mut column = Int64Builder::new();
        groups_of
            .iter()
            .for_each(|group| column.append_value(of(group)));
        Arc::new(column.finish())
    };
    let mut agents = StringViewBuilder::new();
    let mut task_names = StringViewBuilder::new();
    let mut infos = StringViewBuilder::new();
    let mut metrics = StringViewBuilder::new();
    let mut prompts = Messages::default();
    let mut done = Completions::default();
    for PromptGroup {
        prompt,
        completions,
        rollout_metrics,
    } in groups_of
    {
        agents.append_value(&prompt.agent_name);
        task_names.append_option(prompt.task_name.as_ref());
        infos.append_value(prompt.extra_env_info.to_string());
        metrics.append_value(serde_json::to_string(rollout_metrics).unwrap_or_default());
        prompts.append(&prompt.message_log);
        done.append(completions);
    }
    RecordBatch::try_new(
        groups(),
        vec![
            integers(|group| group.prompt.task_index),
            Arc::new(agents.finish()),
            integers(|group| group.prompt.prompt_idx),
            Arc::new(task_names.finish()),
            Arc::new(prompts.finish()?),
            Arc::new(infos.finish()),
            integers(|group| i64::try_from(group.prompt.num_rollouts).unwrap_or(i64::MAX)),
            Arc::new(done.finish()?),
            Arc::new(metrics.finish()),
        ],
    )
}

#[derive(Default)]
struct Completions {
    lengths: Vec<usize>,
    rollout_index: Int64Builder,
    attempt: Int64Builder,
    message_log: Messages,
    env_extras: StringViewBuilder,
    truncated: BooleanBuilder,
    reward: Float64Builder,
}

impl Completions {
    fn append(&mut self, completions: &[super::Completion]) {
        self.lengths.push(completions.len());
        for completion in completions {
            self.rollout_index
                .append_value(completion.key.rollout_index);
            self.attempt.append_value(completion.key.attempt.into());
            self.message_log.append(&completion.message_log);
            self.env_extras
                .append_value(completion.env_extras.to_string());
            self.truncated.append_value(completion.truncated);
            self.reward.append_value(completion.reward);
        }
    }

    fn finish(mut self) -> Result<ListArray, ArrowError> {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.rollout_index.finish()),
            Arc::new(self.attempt.finish()),
            Arc::new(self.message_log.finish()?),
            Arc::new(self.env_extras.finish()),
            Arc::new(self.truncated.finish()),
            Arc::new(self.reward.finish()),
        ];
        list(completions(), self.lengths, completion_fields(), columns)
    }
}

#[derive(Default)]
struct Messages {
    lengths: Vec<usize>,
    role: StringViewBuilder,
    content: StringViewBuilder,
    token_ids: ListBuilder<UInt32Builder>,
    logprobs: ListBuilder<Float64Builder>,
    token_count: Int64Builder,
}

impl Messages {
    fn append(&mut self, log: &[Message]) {
        self.lengths.push(log.len());
        for message in log {
            self.role.append_value(&message.role);
            match &message.content {
                Value::String(text) => self.content.append_value(text),
                parts => self.content.append_value(parts.to_string()),
            }
            let ids = message.token_ids.as_ref();
            self.token_ids
                .append_option(ids.map(|ids| ids.iter().map(|id| Some(*id))));
            let logprobs = message.logprobs.as_ref();
            self.logprobs
                .append_option(logprobs.map(|values| values.iter().map(|value| Some(*value))));
            self.token_count
                .append_value(i64::try_from(message.token_count).unwrap_or(i64::MAX));
        }
    }

    fn finish(mut self) -> Result<ListArray, ArrowError> {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.role.finish()),
            Arc::new(self.content.finish()),
            Arc::new(self.token_ids.finish()),
            Arc::new(self.logprobs.finish()),
            Arc::new(self.token_count.finish()),
        ];
        list(messages(), self.lengths, message_fields(), columns)
    }
}

fn list(
    field: FieldRef,
    lengths: Vec<usize>,
    fields: Fields,
    columns: Vec<ArrayRef>,
) -> Result<ListArray, ArrowError> {
    let items = StructArray::try_new(fields, columns, None)?;
    let offsets = OffsetBuffer::from_lengths(lengths);
    ListArray::try_new(field, offsets, Arc::new(items), None)
}
