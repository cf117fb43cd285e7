//! Translates OpenAI's Responses to Chat Completions, and back.
//!
//! [`request_from_responses`] writes the body of a chat request for a conversation of Responses items, and
//! [`response_from_chat`] reads a chat answer as a Responses object. What Chat Completions cannot express is a
//! [`ConversionError`], never left out. Both follow NeMo Gym's `vllm_model` where Responses leaves a choice.

mod messages;
mod parameters;
mod response;
#[cfg(test)]
mod round_trip;

use std::fmt::Display;

use serde_json::{Map, Value};

pub use response::response_from_chat;

/// Returns the body for `/v1/chat/completions` for a Responses request with the parameters `params`; `input`
/// holds the items of the conversation so far (`input` in `params` is ignored).
///
/// Reasoning, text and calls that follow each other become one assistant message. Parameters that neither interface
/// documents are passed on as they are; `metadata.extra_body` and `metadata.chat_template_kwargs`, texts of JSON
/// objects, are merged into the body as NeMo Gym does.
///
/// # Errors
/// The request is malformed, or Chat Completions cannot express it. The error names the item or parameter.
pub fn request_from_responses(
    params: &Map<String, Value>,
    input: &[Value],
) -> Result<Map<String, Value>, ConversionError> {
    let mut body = Map::new();
    if let Some(model) = params.get("model").filter(|model| !model.is_null()) {
        body.insert("model".to_owned(), model.clone());
    }
    let mut messages = messages::messages(input)?;
    match params.get("instructions") {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) if text.is_empty() => {}
        Some(Value::String(text)) => messages::instruct(&mut messages, text),
        Some(_) => {
            return Err(malformed("instructions", "is not a text"));
        }
    }
    body.insert("messages".to_owned(), Value::Array(messages));
    parameters::write(&mut body, params)?;
    parameters::merge_metadata(&mut body)?;
    Ok(body)
}

/// A Responses item and its place in the conversation, as errors name it.
#[derive(Clone, Copy)]
struct InputItem<'a> {
    index: usize,
    kind: &'a str,
    fields: &'a Map<String, Value>,
}

impl<'a> InputItem<'a> {
    fn new(index: usize, value: &'a Value) -> Result<Self, ConversionError> {
        let malformed = |problem: &str| {
            ConversionError::Malformed(format!("item {index} (`?`) of the conversation {problem}"))
        };
        let fields = value
            .as_object()
            .ok_or_else(|| malformed("is not an object"))?;
        // Responses lets messages leave out their type.
        let kind = match fields.get("type").and_then(Value::as_str) {
            Some(kind) if !kind.is_empty() => kind,
            _ if fields.contains_key("role") => "message",
            _ => return Err(malformed("has neither `type` nor `role`")),
        };
        Ok(Self {
            index,
            kind,
            fields,
        })
    }

    /// Returns the text of a required field.
    fn text(&self, name: &str) -> Result<&'a str, ConversionError> {
        match self.fields.get(name) {
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(self.malformed(format!("has a `{name}` that is not a text"))),
            None => Err(self.malformed(format!("has no `{name}`"))),
        }
    }

    fn malformed(&self, problem: impl Display) -> ConversionError {
        let Self { index, kind, .. } = self;
        ConversionError::Malformed(format!(
            "item {index} (`{kind}`) of the conversation {problem}"
        ))
    }

    /// Returns the error for a part that chat cannot express because it is `what`.
    fn part(&self, part: usize, what: impl Display) -> ConversionError {
        let Self { index, kind, .. } = self;
        ConversionError::OnlyResponses(format!(
            "part {part} of item {index} (`{kind}`) of the conversation is {what}"
        ))
    }
}

/// Returns a field that is not null.
fn given<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null())
}

/// A part of a conversation or an answer that can't be translated. Indices count from 0, and dots lead into
/// objects.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConversionError {
    /// An item, a part, a tool or a parameter that only Responses has.
    #[error("{0}, which Chat Completions cannot express: set `model_api = \"responses\"`")]
    OnlyResponses(String),
    /// An item or a parameter that is malformed for either interface.
    #[error("{0}: correct it in the task")]
    Malformed(String),
    /// An answer that is no chat completion.
    #[error("the chat completion {0}: see the model server's log")]
    Completion(String),
}

/// Returns the error for a parameter's value that only Responses has.
fn unsaid(name: &str, problem: impl Display) -> ConversionError {
    ConversionError::OnlyResponses(format!("the parameter `{name}` {problem}"))
}

/// Returns the error for a malformed parameter.
fn malformed(name: &str, problem: impl Display) -> ConversionError {
    ConversionError::Malformed(format!("the parameter `{name}` {problem}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(params: Value, input: Value) -> Result<Value, String> {
        let params = params.as_object().unwrap();
        request_from_responses(params, input.as_array().unwrap())
            .map(Value::Object)
            .map_err(|error| error.to_string())
    }

    fn messages(input: Value) -> Value {
        request(json!({}), input).unwrap()["messages"].clone()
    }

    fn body(params: Value) -> Value {
        let mut body = request(params, json!([])).unwrap();
        body.as_object_mut().unwrap().remove("messages");
        body
    }

    #[test]
    fn messages_keep_their_role_and_content() {
        for role in ["user", "system", "developer"] {
            assert_eq!(
                messages(json!([{"role": role, "content": "a"}])),
                json!([{"role": role, "content": "a"}])
            );
            assert_eq!(
                messages(json!([{"type": "message", "role": role, "content": [
                    {"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}])),
                json!([{"role": role, "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])
            );
        }
    }

    #[test]
    fn parts_become_the_parts_of_chat() {
        for (part, expected) in [
            (
                json!({"type": "input_image", "image_url": "data:x", "detail": "low"}),
                json!({"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}}),
            ),
            (
                json!({"type": "input_image", "image_url": {"url": "http://i"}, "file_id": null}),
                json!({"type": "image_url", "image_url": {"url": "http://i", "detail": "auto"}}),
            ),
            (
                json!({"type": "input_video", "video_url": "http://v"}),
                json!({"type": "video_url", "video_url": {"url": "http://v"}}),
            ),
            (
                json!({"type": "input_file", "file_data": "data:f", "filename": "a.pdf"}),
                json!({"type": "file", "file": {"file_data": "data:f", "filename": "a.pdf"}}),
            ),
            (
                json!({"type": "input_file", "file_id": "f"}),
                json!({"type": "file", "file": {"file_id": "f"}}),
            ),
            (
                json!({"type": "input_audio", "input_audio": {"data": "d", "format": "wav"}}),
                json!({"type": "input_audio", "input_audio": {"data": "d", "format": "wav"}}),
            ),
            (
                json!({"type": "image_url", "image_url": {"url": "u"}}),
                json!({"type": "image_url", "image_url": {"url": "u"}}),
            ),
        ] {
            let message = json!([{"role": "user", "content": [part]}]);
            assert_eq!(messages(message)[0]["content"], json!([expected]));
        }
    }

    #[test]
    fn a_turn_of_the_assistant_is_one_message() {
        assert_eq!(
            messages(json!([
                {"role": "user", "content": "q"},
                {"type": "reasoning", "id": "rs", "summary": [
                    {"type": "summary_text", "text": "t1"}, {"type": "summary_text", "text": "t2"}]},
                {"type": "message", "role": "assistant", "content": [
                    {"type": "output_text", "text": "a", "annotations": []}, {"type": "output_text", "text": "b"}]},
                {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{ }"},
                {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "broken"},
                {"type": "function_call_output", "call_id": "c1", "output": "o1"},
                {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "o2"}]},
                {"type": "message", "role": "assistant", "content": "end"},
            ])),
            json!([
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "ab", "reasoning_content": "t1\nt2", "reasoning": "t1\nt2", "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{ }"}},
                    {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "broken"}}]},
                {"role": "tool", "tool_call_id": "c1", "content": "o1"},
                {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "o2"}]},
                {"role": "assistant", "content": "end"},
            ])
        );
    }

    #[test]
    fn turns_end_where_text_follows_text_but_not_between_calls() {
        let call =
            |id| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": ""});
        let said = |text| json!({"role": "assistant", "content": text});
        let thought = json!({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]});
        assert_eq!(
            messages(json!([said("a"), said("b")]))
                .as_array()
                .unwrap()
                .len(),
            2
        );
        assert_eq!(
            messages(json!([said("a"), thought, said("b")]))
                .as_array()
                .unwrap()
                .len(),
            2
        );
        let one = messages(json!([call("1"), thought, said("b"), call("2")]));
        assert_eq!(one.as_array().unwrap().len(), 1);
        assert_eq!(one[0]["tool_calls"].as_array().unwrap().len(), 2);
        assert_eq!(one[0]["content"], "b");
        assert_eq!(one[0]["reasoning_content"], "t");
        assert_eq!(messages(json!([call("1")]))[0]["content"], Value::Null);
        assert_eq!(messages(json!([thought]))[0]["content"], "");
    }

    #[test]
    fn reasoning_is_preferred_to_its_summary_and_may_be_secret() {
        let both =
            json!([{"type": "reasoning", "summary": [{"text": "s"}], "content": [{"text": "c"}]}]);
        assert_eq!(messages(both)[0]["reasoning_content"], "c");
        let secret = json!([{"type": "reasoning", "summary": [], "encrypted_content": "x"}, {"role": "assistant", "content": "a"}]);
        assert_eq!(
            messages(secret),
            json!([{"role": "assistant", "content": "a"}])
        );
    }

    #[test]
    fn refusals_and_token_ids_stay_with_their_message() {
        assert_eq!(
            messages(
                json!([{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}],
                "prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]}])
            ),
            json!([{"role": "assistant", "content": null, "refusal": "no",
                "prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]}])
        );
    }

    #[test]
    fn chat_spellings_in_a_conversation_are_understood() {
        let input = json!([
            {"role": "assistant", "content": null, "reasoning_content": "t", "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "o"},
        ]);
        assert_eq!(
            messages(input.clone()),
            json!([
                {"role": "assistant", "content": null, "reasoning_content": "t", "reasoning": "t", "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "c", "content": "o"},
            ])
        );
    }

    #[test]
    fn instructions_take_in_the_messages_that_lead() {
        let body = request(
            json!({"instructions": "i"}),
            json!([
                {"role": "developer", "content": [{"type": "input_text", "text": "d"}]},
                {"role": "system", "content": "s"},
                {"role": "user", "content": "u"},
                {"role": "system", "content": "later"},
            ]),
        );
        assert_eq!(
            body.unwrap()["messages"],
            json!([
                {"role": "system", "content": "i\n\nd\n\ns"},
                {"role": "user", "content": "u"},
                {"role": "system", "content": "later"},
            ])
        );
        assert_eq!(
            request(json!({"instructions": "i"}), json!([])).unwrap()["messages"],
            json!([{"role": "system", "content": "i"}])
        );
    }

    #[test]
    fn parameters_get_the_names_of_chat() {
        let tool = json!({"type": "function", "name": "f", "description": null, "parameters": {"type": "object"}, "strict": true});
        let chat_tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": true}});
        for (params, expected) in [
            (json!({}), json!({})),
            (json!({"input": "x", "model": "m"}), json!({"model": "m"})),
            (json!({"max_output_tokens": 7}), json!({"max_tokens": 7})),
            (
                json!({"temperature": 0.70, "top_p": null, "seed": 1}),
                json!({"temperature": 0.7, "seed": 1}),
            ),
            (
                json!({"top_logprobs": 3}),
                json!({"top_logprobs": 3, "logprobs": true}),
            ),
            (json!({"top_logprobs": 0}), json!({})),
            (
                json!({"include": ["message.output_text.logprobs"]}),
                json!({"logprobs": true}),
            ),
            (
                json!({"include": ["reasoning.encrypted_content"]}),
                json!({}),
            ),
            (
                json!({"reasoning": {"effort": "low", "summary": "auto"}}),
                json!({"reasoning_effort": "low"}),
            ),
            (json!({"reasoning": null}), json!({})),
            (
                json!({"text": {"format": {"type": "text"}, "verbosity": "low"}}),
                json!({"verbosity": "low"}),
            ),
            (
                json!({"text": {"format": {"type": "json_object"}}}),
                json!({"response_format": {"type": "json_object"}}),
            ),
            (
                json!({"text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": false}}}),
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": false}}}),
            ),
            (
                json!({"user": "u", "store": false, "service_tier": "flex", "metadata": {"a": "b"}}),
                json!({"user": "u", "store": false, "service_tier": "flex", "metadata": {"a": "b"}}),
            ),
            (
                json!({"top_k": 5, "odd": null}),
                json!({"top_k": 5, "odd": null}),
            ),
            (
                json!({"previous_response_id": null, "background": false, "truncation": "disabled", "max_tool_calls": 3}),
                json!({}),
            ),
            (
                json!({"tools": [], "tool_choice": "auto", "parallel_tool_calls": true}),
                json!({}),
            ),
            (
                json!({"tools": [tool], "tool_choice": "required", "parallel_tool_calls": false}),
                json!({"tools": [chat_tool], "tool_choice": "required", "parallel_tool_calls": false}),
            ),
            (
                json!({"tools": [chat_tool], "tool_choice": {"type": "function", "name": "f"}}),
                json!({"tools": [chat_tool], "tool_choice": {"type": "function", "function": {"name": "f"}}}),
            ),
            (
                json!({"tools": [tool], "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}}),
                json!({"tools": [chat_tool], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required",
                    "tools": [{"type": "function", "function": {"name": "f"}}]}}}),
            ),
        ] {
            assert_eq!(body(params.clone()), expected, "{params}");
        }
    }

    #[test]
    fn objects_in_metadata_are_merged_below_the_request() {
        let params = json!({"temperature": 1.0, "metadata": {
            "extra_body": r#"{"temperature": 0, "seed": 3, "top_k": 2}"#,
            "chat_template_kwargs": r#"{"enable_thinking": false}"#,
        }, "chat_template_kwargs": {"enable_thinking": true, "x": 1}});
        let body = body(params.clone());
        assert_eq!(body["temperature"], 1.0);
        assert_eq!(body["seed"], 3);
        assert_eq!(body["top_k"], 2);
        assert_eq!(
            body["chat_template_kwargs"],
            json!({"enable_thinking": false, "x": 1})
        );
        assert_eq!(body["metadata"], params["metadata"]);
    }

    #[test]
    fn sound_in_metadata_goes_before_the_last_question() {
        let sound = json!({"type": "audio_url", "audio_url": {"url": "data:a"}});
        let body = request(
            json!({"metadata": {"audio_data": "data:a"}}),
            json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]),
        )
        .unwrap();
        assert_eq!(
            body["messages"][0]["content"],
            json!([sound, {"type": "text", "text": "q"}])
        );
        assert_eq!(body.get("metadata"), None);
        let alone = request(
            json!({"metadata": {"audio_data": "data:a", "k": "v"}}),
            json!([]),
        )
        .unwrap();
        assert_eq!(
            alone["messages"],
            json!([{"role": "user", "content": [sound]}])
        );
        assert_eq!(alone["metadata"], json!({"k": "v"}));
    }

    #[test]
    fn what_chat_cannot_say_is_named() {
        let part = |part: Value| json!([{"role": "user", "content": "a"}, {"role": "user", "content": [part]}]);
        for (params, input, expected) in [
            (
                json!({}),
                json!([{"role": "user", "content": ""}, {"type": "web_search_call"}]),
                "item 1 of the conversation is of type `web_search_call`",
            ),
            (
                json!({}),
                part(json!({"type": "input_image", "file_id": "f"})),
                "part 0 of item 1 (`message`) of the conversation is an `input_image` with a `file_id`",
            ),
            (
                json!({}),
                part(json!({"type": "input_file", "file_url": "u"})),
                "a `file_url`",
            ),
            (
                json!({}),
                part(json!({"type": "hologram"})),
                "of type `hologram`",
            ),
            (
                json!({}),
                json!([{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "u"}]}]),
                "part 0 of item 0 (`function_call_output`)",
            ),
            (
                json!({"tools": [{"type": "function", "name": "f"}, {"type": "web_search"}]}),
                json!([]),
                "tool 1 is of type `web_search`",
            ),
            (
                json!({"tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "mcp"}}),
                json!([]),
                "the parameter `tool_choice` is of type `mcp`",
            ),
            (
                json!({"previous_response_id": "r"}),
                json!([]),
                "`previous_response_id`",
            ),
            (json!({"background": true}), json!([]), "`background`"),
            (json!({"truncation": "auto"}), json!([]), "`truncation`"),
            (
                json!({"text": {"format": {"type": "grammar"}}}),
                json!([]),
                "`text.format` is of type `grammar`",
            ),
        ] {
            let error = request(params, input).unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert!(
                error.ends_with("set `model_api = \"responses\"`"),
                "{error}"
            );
        }
    }

    #[test]
    fn what_is_malformed_is_named() {
        for (params, input, expected) in [
            (
                json!({}),
                json!([1]),
                "item 0 (`?`) of the conversation is not an object",
            ),
            (
                json!({}),
                json!([{"content": ""}]),
                "has neither `type` nor `role`",
            ),
            (
                json!({}),
                json!([{"role": "bot", "content": ""}]),
                "unknown role `bot`",
            ),
            (
                json!({}),
                json!([{"role": "user", "content": 1}]),
                "neither a text nor a list",
            ),
            (
                json!({}),
                json!([{"role": "user", "content": [{"type": "input_text"}]}]),
                "part 0 whose `text` is not a text",
            ),
            (
                json!({}),
                json!([{"type": "function_call", "name": "f", "arguments": ""}]),
                "has no `call_id`",
            ),
            (
                json!({}),
                json!([{"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}]),
                "`arguments` that is not a text",
            ),
            (
                json!({}),
                json!([{"type": "function_call_output", "call_id": "c"}]),
                "has no `output`",
            ),
            (
                json!({"tool_choice": "required"}),
                json!([]),
                "there are no tools",
            ),
            (
                json!({"metadata": {"extra_body": "[1]"}}),
                json!([]),
                "`metadata.extra_body` is not the text of a JSON object",
            ),
            (
                json!({"metadata": {"extra_body": {}}}),
                json!([]),
                "`metadata.extra_body` is not a text",
            ),
            (
                json!({"metadata": {"audio_path": "a.wav"}}),
                json!([]),
                "`metadata.audio_path` names files",
            ),
            (
                json!({"instructions": 1}),
                json!([]),
                "`instructions` is not a text",
            ),
        ] {
            let error = request(params, input).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
