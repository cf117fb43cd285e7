use serde::Deserialize;
use serde_json::{Map, Value};

use crate::model::{Message, joined};

/// The start of a rollout, read from its row.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    /// The index of the prompt.
    pub idx: i64,
    /// The conversation before the first turn.
    pub message_log: Vec<Message>,
    /// The metadata that the environment gets at the first step.
    pub extra_env_info: Value,
    /// The task name, if the row has one.
    pub task_name: Option<String>,
    /// Texts that end the first generation.
    pub stop_strings: Option<Vec<String>>,
    /// The sampling parameters of generations, as in a request of Chat Completions.
    pub sampling: Map<String, Value>,
}

/// The reason why a row is not a prompt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// The row is not an object.
    #[error("the row is not a JSON object")]
    NotAnObject,
    /// The row has no index.
    #[error("the row has neither idx nor _ng_task_index")]
    NoIndex,
    /// The row has no conversation.
    #[error("the row has neither message_log nor responses_create_params.input")]
    NoMessages,
    /// A field is not what it must be.
    #[error("{field} of the row is not {expected}")]
    Field {
        /// Its path in the row.
        field: String,
        /// What it must be.
        expected: &'static str,
    },
    /// The input holds an item that is not a message.
    #[error(
        "{field} of the row is of type '{kind}'; a multi-turn agent takes messages only, with role and content"
    )]
    NotAMessage {
        /// Its path in the row.
        field: String,
        /// Its type.
        kind: String,
    },
}

/// The fields of a request of the Responses API that are not about sampling. The agent sets the model's name,
/// and the rest has no meaning without a Responses server.
const NOT_SAMPLING: [&str; 17] = [
    "background",
    "include",
    "input",
    "instructions",
    "max_tool_calls",
    "metadata",
    "model",
    "parallel_tool_calls",
    "previous_response_id",
    "prompt",
    "store",
    "stream",
    "stream_options",
    "text",
    "tool_choice",
    "tools",
    "truncation",
];

const MAX_TOKENS: &str = "max_tokens";

/// The fields of a message in a row that are read.
#[derive(Deserialize)]
struct RowMessage {
    role: String,
    content: Value,
    token_ids: Option<Vec<u32>>,
}

impl Prompt {
    /// Reads the prompt of a row. `max_new_tokens` bounds the tokens of one generation that the row asks for.
    ///
    /// # Errors
    /// The row lacks a field, or a field is not what it must be.
    pub fn of(row: &Value, max_new_tokens: Option<u64>) -> Result<Self, PromptError> {
        if !row.is_object() {
            return Err(PromptError::NotAnObject);
        }
        let params = present(row, "responses_create_params");
        let message_log = match (present(row, "message_log"), params) {
            (Some(log), _) => logged(log)?,
            (None, Some(params)) => given(params)?,
            (None, None) => return Err(PromptError::NoMessages),
        };
        Ok(Self {
            idx: index(row)?,
            message_log,
            extra_env_info: row.get("extra_env_info").cloned().unwrap_or_default(),
            task_name: field(row, "task_name", "a text")?,
            stop_strings: field(row, "stop_strings", "a list of texts")?,
            sampling: sampling(params, max_new_tokens)?,
        })
    }
}

/// Returns a field that is not null.
fn present<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    object.get(name).filter(|value| !value.is_null())
}

fn wrong(field: impl Into<String>, expected: &'static str) -> PromptError {
    PromptError::Field {
        field: field.into(),
        expected,
    }
}

fn field<'a, T: Deserialize<'a>>(
    row: &'a Value,
    name: &str,
    expected: &'static str,
) -> Result<Option<T>, PromptError> {
    let value = present(row, name).map(T::deserialize).transpose();
    value.map_err(|_| wrong(name, expected))
}

fn index(row: &Value) -> Result<i64, PromptError> {
    let name = ["idx", "_ng_task_index"]
        .into_iter()
        .find(|name| present(row, name).is_some());
    let name = name.ok_or(PromptError::NoIndex)?;
    field(row, name, "an integer")?.ok_or(PromptError::NoIndex)
}

/// Returns the messages of a `message_log`.
fn logged(log: &Value) -> Result<Vec<Message>, PromptError> {
    let items = log
        .as_array()
        .ok_or_else(|| wrong("message_log", "a list of messages"))?;
    let messages = items.iter().enumerate().map(|(number, item)| {
        let message = RowMessage::deserialize(item).map_err(|_| {
            let expected = "a message: {role, content}, and maybe token_ids";
            wrong(format!("message_log[{number}]"), expected)
        })?;
        Ok(Message {
            role: message.role,
            content: message.content,
            token_ids: message.token_ids,
            ..Message::default()
        })
    });
    messages.collect()
}

/// Returns the messages of a request of the Responses API.
fn given(params: &Value) -> Result<Vec<Message>, PromptError> {
    let mut messages = Vec::new();
    if let Some(instructions) = present(params, "instructions") {
        let text = instructions
            .as_str()
            .ok_or_else(|| wrong("responses_create_params.instructions", "a text"))?;
        messages.push(Message::text("system", text));
    }
    match present(params, "input") {
        None => return Err(PromptError::NoMessages),
        Some(Value::String(text)) => messages.push(Message::text("user", text.as_str())),
        Some(Value::Array(items)) => {
            for (number, item) in items.iter().enumerate() {
                messages.push(given_message(item, number)?);
            }
        }
        Some(_) => {
            let expected = "a text or a list of messages";
            return Err(wrong("responses_create_params.input", expected));
        }
    }
    Ok(messages)
}

fn given_message(item: &Value, number: usize) -> Result<Message, PromptError> {
    let path = || format!("responses_create_params.input[{number}]");
    let kind = present(item, "type").and_then(Value::as_str);
    if let Some(kind) = kind.filter(|kind| *kind != "message") {
        return Err(PromptError::NotAMessage {
            field: path(),
            kind: kind.to_owned(),
        });
    }
    let message =
        RowMessage::deserialize(item).map_err(|_| wrong(path(), "a message: {role, content}"))?;
    Ok(Message {
        role: message.role,
        content: joined(&message.content),
        token_ids: message.token_ids,
        ..Message::default()
    })
}

fn sampling(
    params: Option<&Value>,
    max_new_tokens: Option<u64>,
) -> Result<Map<String, Value>, PromptError> {
    const PARAMS: &str = "responses_create_params";
    let mut sampling = Map::new();
    if let Some(params) = params {
        let fields = params
            .as_object()
            .ok_or_else(|| wrong(PARAMS, "an object"))?;
        for (name, value) in fields {
            let name = name.as_str();
            if value.is_null() || NOT_SAMPLING.contains(&name) {
                continue;
            }
            match name {
                "max_output_tokens" => sampling.insert(MAX_TOKENS.into(), value.clone()),
                "reasoning" => match present(value, "effort") {
                    Some(effort) => sampling.insert("reasoning_effort".into(), effort.clone()),
                    None => None,
                },
                _ => sampling.insert(name.into(), value.clone()),
            };
        }
        sampling.extend(extra_body(params)?);
    }
    let asked =
        match sampling.get(MAX_TOKENS) {
            Some(asked) => Some(asked.as_u64().ok_or_else(|| {
                wrong(format!("{PARAMS}.max_output_tokens"), "a number of tokens")
            })?),
            None => None,
        };
    if let Some(most) = asked.into_iter().chain(max_new_tokens).min() {
        sampling.insert(MAX_TOKENS.into(), most.into());
    }
    Ok(sampling)
}

/// Reads the settings beyond the API's own from `metadata.extra_body`, a text because metadata holds only texts.
fn extra_body(params: &Value) -> Result<Map<String, Value>, PromptError> {
    let Some(extra) = present(params, "metadata").and_then(|it| present(it, "extra_body")) else {
        return Ok(Map::new());
    };
    let parsed = match extra {
        Value::String(text) => serde_json::from_str(text).ok(),
        Value::Object(fields) => Some(fields.clone()),
        _ => None,
    };
    parsed.ok_or_else(|| {
        let field = "responses_create_params.metadata.extra_body";
        wrong(field, "the JSON text of an object")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_message_log_comes_before_an_input() {
        let prompt = Prompt::of(
            &json!({
                "idx": 7,
                "_ng_task_index": 3,
                "message_log": [
                    {"role": "system", "content": "s"},
                    {"role": "user", "content": "u", "token_ids": [1, 2]},
                ],
                "responses_create_params": {"input": "other", "temperature": 0.5},
                "extra_env_info": {"answer": "4"},
                "task_name": "math",
                "stop_strings": ["</a>"],
            }),
            None,
        )
        .unwrap();
        assert_eq!(prompt.idx, 7);
        assert_eq!(prompt.message_log[0], Message::text("system", "s"));
        assert_eq!(prompt.message_log[1].token_ids, Some(vec![1, 2]));
        assert_eq!(prompt.extra_env_info, json!({"answer": "4"}));
        assert_eq!(prompt.task_name.as_deref(), Some("math"));
        assert_eq!(prompt.stop_strings, Some(vec!["</a>".to_owned()]));
        assert_eq!(Value::from(prompt.sampling), json!({"temperature": 0.5}));
    }

    #[test]
    fn an_input_gives_the_messages_and_the_sampling() {
        let prompt = Prompt::of(
            &json!({
                "_ng_task_index": 3,
                "responses_create_params": {
                    "instructions": "be brief",
                    "input": [
                        {"role": "user", "content": [{"type": "input_text", "text": "a"},
                                                     {"type": "input_text", "text": "b"}]},
                        {"type": "message", "role": "assistant", "content": "c"},
                    ],
                    "model": "m",
                    "tools": [],
                    "top_p": 0.9,
                    "max_output_tokens": 100,
                    "seed": null,
                    "reasoning": {"effort": "low"},
                    "metadata": {"extra_body": "{\"seed\": 5, \"top_k\": 20}"},
                },
            }),
            Some(64),
        )
        .unwrap();
        let log = [("system", "be brief"), ("user", "ab"), ("assistant", "c")];
        let log = log.map(|(role, text)| Message::text(role, text));
        assert_eq!(prompt.message_log, log);
        assert_eq!(
            Value::from(prompt.sampling),
            json!({"top_p": 0.9, "max_tokens": 64, "reasoning_effort": "low", "seed": 5, "top_k": 20})
        );
        assert_eq!((prompt.idx, prompt.task_name), (3, None));
        let text =
            json!({"idx": 0, "responses_create_params": {"input": "hi", "max_output_tokens": 9}});
        let prompt = Prompt::of(&text, Some(64)).unwrap();
        assert_eq!(prompt.message_log, [Message::text("user", "hi")]);
        assert_eq!(Value::from(prompt.sampling), json!({"max_tokens": 9}));
        let prompt = Prompt::of(&json!({"idx": 0, "message_log": []}), Some(64)).unwrap();
        assert_eq!(Value::from(prompt.sampling), json!({"max_tokens": 64}));
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let cases = [
            (json!(1), "the row is not a JSON object"),
            (json!({"message_log": []}), "neither idx nor _ng_task_index"),
            (
                json!({"idx": "a", "message_log": []}),
                "idx of the row is not an integer",
            ),
            (json!({"idx": 0}), "neither message_log nor"),
            (
                json!({"idx": 0, "responses_create_params": {}}),
                "neither message_log nor",
            ),
            (
                json!({"idx": 0, "message_log": [{"role": "user"}]}),
                "message_log[0] of the row",
            ),
            (
                json!({"idx": 0, "message_log": [], "stop_strings": "x"}),
                "stop_strings of the row is not a list of texts",
            ),
            (
                json!({"idx": 0, "responses_create_params": {"input": [{"type": "function_call"}]}}),
                "input[0] of the row is of type 'function_call'",
            ),
            (
                json!({"idx": 0, "responses_create_params": {"input": "x", "metadata": {"extra_body": "["}}}),
                "metadata.extra_body of the row is not the JSON text of an object",
            ),
            (
                json!({"idx": 0, "responses_create_params": {"input": "x", "max_output_tokens": -1}}),
                "max_output_tokens of the row is not a number of tokens",
            ),
        ];
        for (row, expected) in cases {
            let error = Prompt::of(&row, None).unwrap_err().to_string();
            assert!(error.contains(expected), "{error} does not say {expected}");
        }
    }
}
