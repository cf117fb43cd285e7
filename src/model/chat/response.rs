//! Converts a chat answer to a Responses object.

use serde_json::{Map, Value, json};

use super::{ConversionError, given};
use crate::model::body::TOKEN_ID;

/// The parameters of a request that its response repeats.
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

/// Returns the Responses object for a chat answer to a request with the parameters `params`.
///
/// Only the first choice counts. Ids derive from the completion's id, so that the same answer is always the
/// same object. Token ids and log probabilities that the server sent for training are on the last item, as in NeMo
/// Gym.
///
/// # Errors
/// [`ConversionError::Completion`] if this is no answer of a chat model, or if the server aborted the generation.
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
        .ok_or_else(|| wrong("has a choice without a message"))?;
    let incomplete = match choice.get("finish_reason").and_then(Value::as_str) {
        Some("length") => Some("max_output_tokens"),
        Some("content_filter") => Some("content_filter"),
        Some(reason @ ("abort" | "error")) => {
            return Err(wrong(format!(
                "was aborted by the model server (finish_reason `{reason}`)"
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
    let mut items = items(id, message, log_probs, incomplete.is_some())?;
    let tokens = tokens_of_answer(completion, choice, message)?;
    if let Some(Value::Object(last)) = items.last_mut() {
        last.extend(tokens);
    }

    let mut response = Map::new();
    let mut set = |name: &str, value: Value| response.insert(name.to_owned(), value);
    let param = |name: &str| given(params, name).cloned();
    let own = |name: &str| given(completion, name).cloned().or_else(|| param(name));
    let created = completion.get("created").cloned();
    set("id", json!(format!("resp_{id}")));
    set("created_at", created.unwrap_or(json!(0)));
    set("error", Value::Null);
    let details = incomplete.map(|reason| json!({"reason": reason}));
    set("incomplete_details", details.unwrap_or_default());
    set("model", own("model").unwrap_or_default());
    set("object", json!("response"));
    set("output", Value::Array(items));
    let status = incomplete.map_or("completed", |_| "incomplete");
    set("status", json!(status));
    for name in REPEATED {
        let value = param(name).unwrap_or_else(|| match name {
            "parallel_tool_calls" => json!(true),
            "tool_choice" => json!("auto"),
            "tools" => json!([]),
            _ => Value::Null,
        });
        set(name, value);
    }
    set("service_tier", own("service_tier").unwrap_or_default());
    set("truncation", param("truncation").unwrap_or_default());
    set("usage", usage(completion));
    set("user", param("user").unwrap_or_default());
    Ok(response)
}

/// Returns the error for an answer without choices. Some servers answer 200 with an error inside.
fn no_choice(completion: &Map<String, Value>) -> ConversionError {
    let message = completion
        .get("error")
        .map(|error| error.get("message").unwrap_or(error))
        .or_else(|| completion.get("message"))
        .and_then(Value::as_str);
    ConversionError::Completion(match message {
        Some(message) => format!(
            "has no choices, only the message \"{}\"",
            message.chars().take(300).collect::<String>()
        ),
        None => "has no choices".to_owned(),
    })
}

/// Returns the items in the order reasoning, message, calls. Their ids derive from `id`; a cut answer's message is
/// `incomplete`.
fn items(
    id: &str,
    message: &Map<String, Value>,
    log_probs: Option<&Value>,
    is_cut: bool,
) -> Result<Vec<Value>, ConversionError> {
    let mut items = Vec::new();
    let content = content(message)?;
    let (thoughts, text) = split_thoughts(&content);
    let separate = ["reasoning_content", "reasoning"]
        .into_iter()
        .find_map(|name| message.get(name)?.as_str().filter(|text| !text.is_empty()));
    let summary: Vec<Value> = separate
        .into_iter()
        .chain(thoughts)
        .map(|text| json!({"text": text, "type": "summary_text"}))
        .collect();
    if !summary.is_empty() {
        items.push(json!({
            "id": format!("rs_{id}"),
            "summary": summary,
            "type": "reasoning",
            "status": "completed",
        }));
    }
    let calls = calls(id, message)?;
    let refusal = message.get("refusal").and_then(Value::as_str);
    let mut parts = Vec::new();
    if !text.is_empty() || (refusal.is_none() && items.is_empty() && calls.is_empty()) {
        let mut part = json!({"type": "output_text", "text": text, "annotations": []});
        let shown = log_probs.filter(|value| value.is_array() && !are_by_id(value));
        if let (Some(fields), Some(log_probs)) = (part.as_object_mut(), shown) {
            fields.insert("logprobs".to_owned(), log_probs.clone());
        }
        parts.push(part);
    }
    parts.extend(refusal.map(|refusal| json!({"type": "refusal", "refusal": refusal})));
    if !parts.is_empty() {
        let status = if is_cut && calls.is_empty() {
            "incomplete"
        } else {
            "completed"
        };
        items.push(json!({
            "id": format!("msg_{id}"),
            "role": "assistant",
            "content": parts,
            "status": status,
            "type": "message",
        }));
    }
    items.extend(calls);
    Ok(items)
}

fn content(message: &Map<String, Value>) -> Result<String, ConversionError> {
    match message.get("content") {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => parts
            .iter()
            .map(|part| part.get("text").and_then(Value::as_str))
            .collect::<Option<String>>()
            .ok_or_else(|| wrong("has content other than texts")),
        Some(_) => Err(wrong(
            "has content that is neither a text nor a list of parts",
        )),
    }
}

/// Splits a text into the thoughts at its start and the rest, including white space.
fn split_thoughts(text: &str) -> (Vec<&str>, &str) {
    let mut thoughts = Vec::new();
    let mut rest = text;
    while let Some((thought, after)) = rest
        .trim_start()
        .strip_prefix("<think>")
        .and_then(|open| open.split_once("</think>"))
    {
        if !thought.is_empty() {
            thoughts.push(thought);
        }
        rest = after;
    }
    (thoughts, rest)
}

fn calls(id: &str, message: &Map<String, Value>) -> Result<Vec<Value>, ConversionError> {
    let calls = match given(message, "tool_calls") {
        None => &[][..],
        Some(Value::Array(calls)) => calls,
        Some(_) => return Err(wrong("has `tool_calls` that are no list")),
    };
    let mut items = Vec::new();
    for (index, call) in calls.iter().enumerate() {
        let function = call.get("function").ok_or_else(|| {
            let kind = call.get("type").and_then(Value::as_str).unwrap_or("?");
            wrong(format!(
                "has a call {index} of type `{kind}`, not of a function"
            ))
        })?;
        let call_id = call.get("id").and_then(Value::as_str);
        items.push(call_item(id, index, call_id, function)?);
    }
    // The older form of servers, for a single call.
    if let (true, Some(function)) = (items.is_empty(), given(message, "function_call")) {
        items.push(call_item(id, 0, None, function)?);
    }
    Ok(items)
}

fn call_item(
    id: &str,
    index: usize,
    call_id: Option<&str>,
    function: &Value,
) -> Result<Value, ConversionError> {
    let name = function
        .get("name")
        .and_then(Value::as_str)
        .ok_or_else(|| wrong(format!("has a call {index} without the name of a function")))?;
    let arguments = match function.get("arguments") {
        Some(Value::String(text)) => text.clone(),
        None | Some(Value::Null) => "{}".to_owned(),
        Some(Value::Object(arguments)) => Value::Object(arguments.clone()).to_string(),
        Some(_) => {
            return Err(wrong(format!(
                "has a call {index} whose arguments are no text"
            )));
        }
    };
    let call_id = call_id
        .filter(|call_id| !call_id.is_empty())
        .map_or_else(|| format!("call_{id}_{index}"), str::to_owned);
    Ok(json!({
        "arguments": arguments,
        "call_id": call_id,
        "name": name,
        "type": "function_call",
        "id": format!("fc_{id}_{index}"),
        "status": "completed",
    }))
}

fn wrong(problem: impl Into<String>) -> ConversionError {
    ConversionError::Completion(problem.into())
}

/// Returns the `usage` of Responses; null if the server did not count. Missing details are null, as in NeMo
/// Gym: zero would say that nothing was cached.
fn usage(completion: &Map<String, Value>) -> Value {
    let Some(usage) = completion.get("usage") else {
        return Value::Null;
    };
    let count = |name: &str| usage.get(name).and_then(Value::as_u64);
    let detail = |group: &str, name: &str, others: &[&str]| {
        let own = usage.get(group).and_then(|group| group.get(name)?.as_u64());
        own.or_else(|| others.iter().find_map(|other| count(other)))
    };
    let (Some(input), Some(output)) = (count("prompt_tokens"), count("completion_tokens")) else {
        return Value::Null;
    };
    let cached = detail(
        "prompt_tokens_details",
        "cached_tokens",
        &["cached_input_tokens", "cache_read_input_tokens"],
    );
    let reasoning = detail(
        "completion_tokens_details",
        "reasoning_tokens",
        &["reasoning_output_tokens"],
    );
    json!({
        "input_tokens": input,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": count("total_tokens").unwrap_or_else(|| input.saturating_add(output)),
    })
}

const PROMPT: &str = "prompt_token_ids";
const GENERATION: &str = "generation_token_ids";
const LOG_PROBS: &str = "generation_log_probs";
const EXPERTS: &str = "routed_experts";

/// Returns the token fields of an item or message, if it has all of them.
pub(super) fn tokens_of_item(fields: &Map<String, Value>) -> Option<Map<String, Value>> {
    let mut tokens = Map::new();
    for name in [PROMPT, GENERATION, LOG_PROBS] {
        tokens.insert(name.to_owned(), given(fields, name)?.clone());
    }
    if let Some(experts) = given(fields, EXPERTS) {
        tokens.insert(EXPERTS.to_owned(), experts.clone());
    }
    Some(tokens)
}

/// Returns the token fields of a chat answer, under the names that NeMo Gym's items use; empty if the server
/// sent none. The message's own fields take precedence.
fn tokens_of_answer(
    completion: &Map<String, Value>,
    choice: &Map<String, Value>,
    message: &Map<String, Value>,
) -> Result<Map<String, Value>, ConversionError> {
    let in_any = |names: &[&str], places: &[&Map<String, Value>]| {
        places
            .iter()
            .find_map(|place| names.iter().find_map(|name| given(place, name)))
            .cloned()
    };
    let prompt = in_any(&[PROMPT], &[message, choice, completion]);
    let generation = in_any(&[GENERATION, "token_ids"], &[message, choice]);
    let log_probs = in_any(&[LOG_PROBS], &[message, choice]).or_else(|| {
        // Only ids show that tokens are wanted: log probabilities alone stay with the text.
        (prompt.is_some() || generation.is_some()).then(|| log_probs_of(choice))?
    });
    if prompt.is_none() && generation.is_none() && log_probs.is_none() {
        return Ok(Map::new());
    }
    let fields = [
        (PROMPT, &prompt),
        (GENERATION, &generation),
        (LOG_PROBS, &log_probs),
    ];
    let missing = fields.into_iter().filter(|(_, value)| value.is_none());
    let missing: Vec<&str> = missing.map(|(name, _)| name).collect();
    let (Some(prompt), Some(generation), Some(log_probs)) = (prompt, generation, log_probs) else {
        return Err(ConversionError::Completion(format!(
            "has token information without {}: ask for `return_token_ids` and `logprobs` together, or for neither",
            missing.join(" and ")
        )));
    };
    let count = |value: &Value| value.as_array().map(Vec::len);
    if count(&generation) != count(&log_probs) || count(&prompt).is_none() {
        return Err(wrong(
            "has not one log probability for each generated token",
        ));
    }
    let mut tokens = Map::new();
    tokens.insert(PROMPT.to_owned(), prompt);
    tokens.insert(GENERATION.to_owned(), generation);
    tokens.insert(LOG_PROBS.to_owned(), log_probs);
    if let Some(experts) = in_any(&[EXPERTS], &[message, choice]) {
        tokens.insert(EXPERTS.to_owned(), experts);
    }
    Ok(tokens)
}

/// Returns whether log probabilities name tokens by id, as vLLM can. A reader of the text can't use those.
fn are_by_id(log_probs: &Value) -> bool {
    log_probs
        .get(0)
        .and_then(|entry| entry.get("token"))
        .and_then(Value::as_str)
        .is_some_and(|token| token.starts_with(TOKEN_ID))
}

fn log_probs_of(choice: &Map<String, Value>) -> Option<Value> {
    let entries = choice.get("logprobs")?.get("content")?.as_array()?;
    entries
        .iter()
        .map(|entry| {
            entry
                .get("logprob")
                .filter(|value| value.is_number())
                .cloned()
        })
        .collect()
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
