//! [`response_from_chat`].

use serde_json::{Map, Value, json};

use super::items::given;
use super::usage::usage;
use super::{ConversionError, output, tokens};

/// What a response repeats of its request, and what it says where the request is silent.
const REPEATED: [&str; 18] = [
    "background",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "parallel_tool_calls",
    "previous_response_id",
    "prompt",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "store",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
];

/// The Responses object for a chat answer to a request that had the parameters `params`.
///
/// Of several choices the first counts. Ids are made of the completion's id, so that the same answer is always the
/// same object. Token ids and log probabilities that the server gave for training are on the last item, as NeMo Gym
/// has them.
///
/// # Errors
/// [`ConversionError::Completion`] for what is no answer of a chat model, and for generations that the server gave up.
pub fn response_from_chat(
    completion: &Map<String, Value>,
    params: &Map<String, Value>,
) -> Result<Map<String, Value>, ConversionError> {
    let choice = completion
        .get("choices")
        .and_then(|choices| choices.get(0)?.as_object())
        .ok_or_else(|| no_choice(completion))?;
    let message = choice
        .get("message")
        .and_then(Value::as_object)
        .ok_or_else(|| ConversionError::Completion("has a choice without a message".to_owned()))?;
    let incomplete = match choice.get("finish_reason").and_then(Value::as_str) {
        Some("length") => Some("max_output_tokens"),
        Some("content_filter") => Some("content_filter"),
        Some(reason @ ("abort" | "error")) => {
            return Err(ConversionError::Completion(format!(
                "was given up by the model server (finish_reason `{reason}`)"
            )));
        }
        _ => None,
    };
    let id = completion
        .get("id")
        .and_then(Value::as_str)
        .filter(|id| !id.is_empty())
        .unwrap_or("chatcmpl");
    let log_probs = choice
        .get("logprobs")
        .and_then(|log_probs| log_probs.get("content"));
    let mut items = output::items(id, message, log_probs, incomplete.is_some())?;
    let tokens = tokens::of_answer(completion, choice, message)?;
    if let Some(Value::Object(last)) = items.last_mut() {
        last.extend(tokens);
    }

    let mut response = Map::new();
    let mut set = |name: &str, value: Value| response.insert(name.to_owned(), value);
    set("id", json!(format!("resp_{id}")));
    set(
        "created_at",
        completion.get("created").cloned().unwrap_or(json!(0)),
    );
    set("error", Value::Null);
    set(
        "incomplete_details",
        incomplete.map_or(Value::Null, |reason| json!({"reason": reason})),
    );
    let model = given(completion, "model").or_else(|| given(params, "model"));
    set("model", model.cloned().unwrap_or_default());
    set("object", json!("response"));
    set("output", Value::Array(items));
    let status = if incomplete.is_some() {
        "incomplete"
    } else {
        "completed"
    };
    set("status", json!(status));
    for name in REPEATED {
        let value = given(params, name).cloned().unwrap_or_else(|| match name {
            "parallel_tool_calls" => json!(true),
            "tool_choice" => json!("auto"),
            "tools" => json!([]),
            _ => Value::Null,
        });
        set(name, value);
    }
    let tier = given(completion, "service_tier").or_else(|| given(params, "service_tier"));
    set("service_tier", tier.cloned().unwrap_or_default());
    set(
        "truncation",
        given(params, "truncation").cloned().unwrap_or_default(),
    );
    set("usage", usage(completion));
    set("user", given(params, "user").cloned().unwrap_or_default());
    Ok(response)
}

/// Some servers answer 200 with an error inside.
fn no_choice(completion: &Map<String, Value>) -> ConversionError {
    let message = completion
        .get("error")
        .map(|error| error.get("message").unwrap_or(error))
        .or_else(|| completion.get("message"))
        .and_then(Value::as_str);
    ConversionError::Completion(match message {
        Some(message) => format!(
            "has no choices but the message \"{}\"",
            message.chars().take(300).collect::<String>()
        ),
        None => "has no choices".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(choice: Value) -> Value {
        json!({"id": "chatcmpl-1", "created": 12, "model": "m", "choices": [choice]})
    }

    fn respond(completion: &Value) -> Result<Value, String> {
        response_from_chat(completion.as_object().unwrap(), &Map::new())
            .map(Value::Object)
            .map_err(|error| error.to_string())
    }

    fn output(message: Value) -> Value {
        respond(&completion(
            json!({"message": message, "finish_reason": "stop"}),
        ))
        .unwrap()["output"]
            .clone()
    }

    fn reasoning(texts: &[&str]) -> Value {
        let summary: Vec<Value> = texts
            .iter()
            .map(|text| json!({"type": "summary_text", "text": text}))
            .collect();
        json!({"id": "rs_chatcmpl-1", "type": "reasoning", "status": "completed", "summary": summary})
    }

    fn said(text: &str) -> Value {
        json!({"id": "msg_chatcmpl-1", "type": "message", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}]})
    }

    fn called(index: usize, call_id: &str, arguments: &str) -> Value {
        json!({"id": format!("fc_chatcmpl-1_{index}"), "type": "function_call", "status": "completed",
            "call_id": call_id, "name": "f", "arguments": arguments})
    }

    #[test]
    fn messages_become_items() {
        let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}});
        for (message, expected) in [
            (json!({"content": "a"}), json!([said("a")])),
            (
                json!({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
                json!([said("ab")]),
            ),
            (json!({"content": null}), json!([said("")])),
            (
                json!({"content": "a", "reasoning_content": "t"}),
                json!([reasoning(&["t"]), said("a")]),
            ),
            (
                json!({"content": "a", "reasoning": "t", "reasoning_content": ""}),
                json!([reasoning(&["t"]), said("a")]),
            ),
            (
                json!({"content": "<think>t</think>\n\na"}),
                json!([reasoning(&["t"]), said("\n\na")]),
            ),
            (
                json!({"content": "<think>t</think>\n<think>u</think>a"}),
                json!([reasoning(&["t", "u"]), said("a")]),
            ),
            (
                json!({"content": "<think>u</think>a", "reasoning_content": "t"}),
                json!([reasoning(&["t", "u"]), said("a")]),
            ),
            (
                json!({"content": "a <think>t</think>"}),
                json!([said("a <think>t</think>")]),
            ),
            (
                json!({"content": "<think>never closed"}),
                json!([said("<think>never closed")]),
            ),
            (
                json!({"content": "", "reasoning_content": "t"}),
                json!([reasoning(&["t"])]),
            ),
            (
                json!({"content": "", "tool_calls": [call("c", "{ \"a\":1.0}")]}),
                json!([called(0, "c", "{ \"a\":1.0}")]),
            ),
            (
                json!({"content": "a", "reasoning_content": "t", "tool_calls": [call("c", ""), call("d", "{")]}),
                json!([
                    reasoning(&["t"]),
                    said("a"),
                    called(0, "c", ""),
                    called(1, "d", "{")
                ]),
            ),
            (
                json!({"tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}),
                json!([called(0, "call_chatcmpl-1_0", "{\"a\":1}")]),
            ),
            (
                json!({"function_call": {"name": "f"}}),
                json!([called(0, "call_chatcmpl-1_0", "{}")]),
            ),
            (
                json!({"content": null, "refusal": "no"}),
                json!([{"id": "msg_chatcmpl-1", "type": "message", "role": "assistant", "status": "completed",
                    "content": [{"type": "refusal", "refusal": "no"}]}]),
            ),
        ] {
            assert_eq!(output(message.clone()), expected, "{message}");
        }
    }

    #[test]
    fn a_cut_answer_is_incomplete() {
        for (reason, expected) in [
            ("length", "max_output_tokens"),
            ("content_filter", "content_filter"),
        ] {
            let response = respond(&completion(
                json!({"message": {"content": "a"}, "finish_reason": reason}),
            ))
            .unwrap();
            assert_eq!(response["status"], "incomplete");
            assert_eq!(response["incomplete_details"], json!({"reason": expected}));
            assert_eq!(response["output"][0]["status"], "incomplete");
        }
        for reason in [json!("stop"), json!("tool_calls"), Value::Null] {
            let response = respond(&completion(
                json!({"message": {"content": "a"}, "finish_reason": reason}),
            ))
            .unwrap();
            assert_eq!(response["status"], "completed");
            assert_eq!(response["incomplete_details"], Value::Null);
        }
    }

    #[test]
    fn requests_are_repeated() {
        let params = json!({"tools": [{"type": "web"}], "tool_choice": "none", "temperature": 0.5, "metadata": {"a": "b"},
            "parallel_tool_calls": false, "model": "asked", "input": "x", "reasoning": {"effort": "low"}});
        let completion = completion(json!({"message": {"content": "a"}}));
        let response =
            response_from_chat(completion.as_object().unwrap(), params.as_object().unwrap())
                .unwrap();
        for name in [
            "tools",
            "tool_choice",
            "temperature",
            "metadata",
            "parallel_tool_calls",
            "reasoning",
        ] {
            assert_eq!(response[name], params[name], "{name}");
        }
        assert_eq!(response["id"], "resp_chatcmpl-1");
        assert_eq!(response["created_at"], 12);
        assert_eq!(response["object"], "response");
        assert_eq!(response["model"], "m");
        assert_eq!(response.get("input"), None);
        let silent = respond(&completion).unwrap();
        assert_eq!(silent["tools"], json!([]));
        assert_eq!(silent["tool_choice"], "auto");
        assert_eq!(silent["parallel_tool_calls"], true);
        assert_eq!(silent["top_p"], Value::Null);
        assert_eq!(silent["usage"], Value::Null);
    }

    #[test]
    fn usage_says_only_what_was_counted() {
        for (usage, expected) in [
            (
                json!({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 8, "prompt_tokens_details": {"cached_tokens": 2},
                    "completion_tokens_details": {"reasoning_tokens": 1}}),
                json!({"input_tokens": 3, "input_tokens_details": {"cached_tokens": 2}, "output_tokens": 4,
                    "output_tokens_details": {"reasoning_tokens": 1}, "total_tokens": 8}),
            ),
            (
                json!({"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": null}),
                json!({"input_tokens": 3, "input_tokens_details": {"cached_tokens": null}, "output_tokens": 4,
                    "output_tokens_details": {"reasoning_tokens": null}, "total_tokens": 7}),
            ),
            (json!({"prompt_tokens": 3}), Value::Null),
        ] {
            let mut completion = completion(json!({"message": {"content": "a"}}));
            completion["usage"] = usage;
            assert_eq!(respond(&completion).unwrap()["usage"], expected);
        }
    }

    #[test]
    fn log_probabilities_stay_with_the_text() {
        let log_probs =
            json!([{"token": "a", "logprob": -0.25, "bytes": [97], "top_logprobs": []}]);
        let choice = json!({"message": {"content": "a"}, "logprobs": {"content": log_probs}});
        let response = respond(&completion(choice)).unwrap();
        assert_eq!(response["output"][0]["content"][0]["logprobs"], log_probs);
    }

    #[test]
    fn token_ids_go_to_the_last_item() {
        let call = json!([{"id": "c", "function": {"name": "f", "arguments": ""}}]);
        let tokens = json!({"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]});
        let mut on_message = json!({"content": "a", "tool_calls": call});
        on_message
            .as_object_mut()
            .unwrap()
            .extend(tokens.as_object().unwrap().clone());
        let mut from_server = completion(
            json!({"message": {"content": "a", "tool_calls": call}, "token_ids": [3],
            "logprobs": {"content": [{"token": "token_id:3", "logprob": -0.5}]}}),
        );
        from_server["prompt_token_ids"] = json!([1, 2]);
        for completion in [completion(json!({"message": on_message})), from_server] {
            let response = respond(&completion).unwrap();
            assert_eq!(response["output"][0].get("generation_token_ids"), None);
            assert_eq!(response["output"][0]["content"][0].get("logprobs"), None);
            for (name, value) in tokens.as_object().unwrap() {
                assert_eq!(response["output"][1][name], *value, "{name}");
            }
        }
    }

    #[test]
    fn no_answers_are_named() {
        let call =
            |call: Value| completion(json!({"message": {"content": null, "tool_calls": [call]}}));
        for (completion, expected) in [
            (json!({}), "the chat completion has no choices"),
            (json!({"choices": []}), "has no choices"),
            (
                json!({"error": {"message": "too long"}}),
                "the message \"too long\"",
            ),
            (
                json!({"object": "error", "message": "bad"}),
                "the message \"bad\"",
            ),
            (completion(json!({"text": "a"})), "without a message"),
            (
                completion(json!({"message": {"content": "a"}, "finish_reason": "abort"})),
                "`abort`",
            ),
            (
                completion(json!({"message": {"content": 1}})),
                "neither a text",
            ),
            (
                call(json!({"id": "c", "type": "custom", "custom": {}})),
                "type `custom`",
            ),
            (
                call(json!({"id": "c", "function": {"arguments": ""}})),
                "without the name",
            ),
            (
                call(json!({"id": "c", "function": {"name": "f", "arguments": 3}})),
                "arguments are no text",
            ),
            (
                completion(json!({"message": {"content": "a", "prompt_token_ids": [1]}})),
                "without generation_token_ids and generation_log_probs",
            ),
            (
                completion(
                    json!({"message": {"content": "a", "prompt_token_ids": [1], "generation_token_ids": [1, 2], "generation_log_probs": [0]}}),
                ),
                "one log probability for each",
            ),
        ] {
            let error = respond(&completion).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
