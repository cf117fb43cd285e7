//! Whether answers and responses have something to show.

use serde_json::Value;

use super::shape::{Fields, Unreadable};
use crate::python::{is_space, is_truthy_value};

/// Fields in which a text may stand.
const TEXTS: [&str; 9] = [
    "text",
    "content",
    "output_text",
    "answer",
    "refusal",
    "encrypted_content",
    "reasoning",
    "reasoning_content",
    "summary",
];

/// Types of items that are a call of a tool.
const TOOL_CALLS: [&str; 13] = [
    "function_call",
    "tool_call",
    "tool_use",
    "mcp_call",
    "mcp_list_tools",
    "mcp_approval_request",
    "file_search_call",
    "web_search_call",
    "computer_call",
    "image_generation_call",
    "code_interpreter_call",
    "local_shell_call",
    "custom_tool_call",
];

/// Whether there is a text that is more than white space.
pub(super) fn has_text(value: &Value) -> bool {
    match value {
        Value::String(text) => !text.chars().all(is_space),
        Value::Array(items) => items.iter().any(has_text),
        Value::Object(fields) => has_text_in(fields, &TEXTS),
        _ => false,
    }
}

fn has_text_in(fields: &Fields, names: &[&str]) -> bool {
    names
        .iter()
        .filter_map(|name| fields.get(*name))
        .any(has_text)
}

/// Whether there is a call of a tool.
pub(super) fn has_tool_call(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().any(has_tool_call),
        Value::Object(item) => {
            let kind = item.get("type").and_then(Value::as_str);
            kind.is_some_and(|kind| TOOL_CALLS.contains(&kind))
                || item.get("tool_calls").is_some_and(is_truthy_value)
        }
        _ => false,
    }
}

/// Whether a response of a model has content.
///
/// # Errors
/// NeMo Gym breaks down over it.
pub(super) fn has_content(response: &Value) -> Result<bool, Unreadable> {
    let Value::Object(response) = response else {
        return Ok(false);
    };
    if has_text_in(response, &["output_text", "content"]) {
        return Ok(true);
    }
    let choices = match response.get("choices") {
        Some(Value::Array(choices)) => choices.as_slice(),
        Some(Value::Number(_) | Value::Bool(true))
            if response.get("choices").is_some_and(is_truthy_value) =>
        {
            return Err("TypeError");
        }
        _ => &[],
    };
    for choice in choices.iter().filter_map(Value::as_object) {
        if has_text_in(choice, &["text"]) {
            return Ok(true);
        }
        match choice.get("message") {
            Some(Value::Object(message)) if has_text_in(message, &["content"]) => return Ok(true),
            Some(Value::Object(_)) | None => {}
            Some(message) if is_truthy_value(message) => return Err("AttributeError"),
            Some(_) => {}
        }
    }
    Ok(has_text_in(response, &["output"]))
}
