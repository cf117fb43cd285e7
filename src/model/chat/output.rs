//! A chat message as Responses items.

use serde_json::{Map, Value, json};

use super::items::given;
use super::{ConversionError, tokens};

/// The items in the order reasoning, message, calls. `id` is what their ids are made of; a cut answer's message is
/// `incomplete`.
pub(super) fn items(
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
        let shown = log_probs.filter(|value| value.is_array() && !tokens::are_by_id(value));
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

/// The thoughts at the start of a text, and what follows them, white space and all.
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
            wrong(&format!(
                "has a call {index} of type `{kind}`, not of a function"
            ))
        })?;
        let call_id = call.get("id").and_then(Value::as_str);
        items.push(call_item(id, index, call_id, function)?);
    }
    // What servers wrote before there were several calls.
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
        .ok_or_else(|| {
            wrong(&format!(
                "has a call {index} without the name of a function"
            ))
        })?;
    let arguments = match function.get("arguments") {
        Some(Value::String(text)) => text.clone(),
        None | Some(Value::Null) => "{}".to_owned(),
        Some(Value::Object(arguments)) => Value::Object(arguments.clone()).to_string(),
        Some(_) => {
            return Err(wrong(&format!(
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

fn wrong(problem: &str) -> ConversionError {
    ConversionError::Completion(problem.to_owned())
}
