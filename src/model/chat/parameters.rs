//! Converts the parameters of a request besides the conversation: sampling, formats, tools and the choice of tools.

use serde_json::{Map, Value, json};

use super::{ConversionError, given, malformed, unsaid};

/// Writes the chat counterparts of `params` into `body`.
pub(super) fn write(
    body: &mut Map<String, Value>,
    params: &Map<String, Value>,
) -> Result<(), ConversionError> {
    let has_tools = params.get("tools").is_some_and(|tools| {
        !tools.is_null() && tools.as_array().is_none_or(|list| !list.is_empty())
    });
    for (name, value) in params {
        match name.as_str() {
            "input" | "instructions" | "model" => {}
            // These only concern tools that run at the server, summaries and encrypted reasoning.
            "max_tool_calls" | "include" => {}
            "tools" if has_tools => set(body, name, tools(value)?),
            "tools" => {}
            "tool_choice" | "parallel_tool_calls" if value.is_null() => {}
            "tool_choice" if has_tools => set(body, name, choice(value)?),
            // Servers refuse `tool_choice` and `parallel_tool_calls` without tools.
            "tool_choice" if matches!(value.as_str(), Some("auto" | "none")) => {}
            "tool_choice" => {
                return Err(malformed(name, "asks for a call, but there are no tools"));
            }
            "parallel_tool_calls" if !has_tools => {}
            "max_output_tokens" if value.is_null() => {}
            // As NeMo Gym does. Servers that know `max_completion_tokens` alone have Responses as well.
            "max_output_tokens" => set(body, "max_tokens", value.clone()),
            "top_logprobs" => top_log_probs(body, params, value),
            "reasoning" => {
                if let Some(effort) = value.get("effort").filter(|effort| !effort.is_null()) {
                    set(body, "reasoning_effort", effort.clone());
                }
            }
            "text" => text(body, value)?,
            "previous_response_id" | "conversation" | "prompt" if !value.is_null() => {
                return Err(unsaid(name, "refers to what only the model server has"));
            }
            "background" if value.as_bool() == Some(true) => {
                return Err(unsaid(name, "asks for an answer later"));
            }
            "truncation" if value.as_str() == Some("auto") => {
                return Err(unsaid(name, "asks to leave out parts of the conversation"));
            }
            "previous_response_id" | "conversation" | "prompt" | "background" | "truncation" => {}
            "temperature" | "top_p" | "metadata" | "user" | "seed" | "store" | "service_tier"
            | "stream" | "stream_options" | "prompt_cache_key" | "safety_identifier"
                if value.is_null() => {}
            _ => set(body, name, value.clone()),
        }
    }
    if wants_log_probs(params) {
        set(body, "logprobs", true);
    }
    Ok(())
}

/// Merges the objects that NeMo Gym's data sets carry as JSON texts in `metadata`. The request's fields win
/// over those of `extra_body`.
pub(super) fn merge_metadata(body: &mut Map<String, Value>) -> Result<(), ConversionError> {
    let Some(Value::Object(metadata)) = body.get("metadata") else {
        return Ok(());
    };
    let template = object_in(metadata, "chat_template_kwargs")?;
    let extra = object_in(metadata, "extra_body")?;
    if !template.is_empty() {
        let mut merged = match body.get("chat_template_kwargs") {
            Some(Value::Object(own)) => own.clone(),
            _ => Map::new(),
        };
        merged.extend(template);
        set(body, "chat_template_kwargs", merged);
    }
    for (name, value) in extra {
        body.entry(name).or_insert(value);
    }
    audio(body)
}

fn object_in(
    metadata: &Map<String, Value>,
    key: &str,
) -> Result<Map<String, Value>, ConversionError> {
    let name = format!("metadata.{key}");
    match metadata.get(key) {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::String(text)) if text.is_empty() => Ok(Map::new()),
        Some(Value::String(text)) => serde_json::from_str(text).map_err(|error| {
            malformed(&name, format!("is not the text of a JSON object ({error})"))
        }),
        Some(_) => Err(malformed(&name, "is not a text")),
    }
}

/// Moves the sound that `metadata` carries into the last user message, before its text.
fn audio(body: &mut Map<String, Value>) -> Result<(), ConversionError> {
    let Some(Value::Object(metadata)) = body.get_mut("metadata") else {
        return Ok(());
    };
    for key in ["audio_path", "audio_paths"] {
        if given(metadata, key).is_some() {
            let problem = "names files, but requests are made without reading any; give `metadata.audio_data`, a `data:` URL, instead";
            return Err(malformed(&format!("metadata.{key}"), problem));
        }
    }
    let url = match metadata.get("audio_data") {
        Some(Value::String(url)) if !url.is_empty() => url.clone(),
        None | Some(Value::Null | Value::String(_)) => return Ok(()),
        Some(_) => return Err(malformed("metadata.audio_data", "is not a text")),
    };
    metadata.shift_remove("audio_data");
    if metadata.is_empty() {
        body.shift_remove("metadata");
    }
    let mut parts = vec![json!({"type": "audio_url", "audio_url": {"url": url}})];
    let Some(Value::Array(messages)) = body.get_mut("messages") else {
        return Ok(());
    };
    let last = messages
        .iter_mut()
        .rfind(|message| message.get("role").and_then(Value::as_str) == Some("user"))
        .and_then(|message| message.get_mut("content"));
    match last {
        Some(content) => {
            match content.take() {
                Value::Array(own) => parts.extend(own),
                text => parts.push(json!({"type": "text", "text": text})),
            }
            *content = Value::Array(parts);
        }
        None => messages.push(json!({"role": "user", "content": parts})),
    }
    Ok(())
}

fn wants_log_probs(params: &Map<String, Value>) -> bool {
    let is_included = params
        .get("include")
        .and_then(Value::as_array)
        .is_some_and(|include| {
            include
                .iter()
                .any(|what| what.as_str() == Some("message.output_text.logprobs"))
        });
    let is_ranked = params.get("top_logprobs").and_then(Value::as_u64);
    is_included || is_ranked.is_some_and(|count| count > 0)
}

/// Sets `top_logprobs`, which chat refuses in requests that don't ask for log probabilities.
fn top_log_probs(body: &mut Map<String, Value>, params: &Map<String, Value>, value: &Value) {
    let is_asked = wants_log_probs(params) || given(params, "logprobs").is_some();
    if is_asked && !value.is_null() {
        set(body, "top_logprobs", value.clone());
    }
}

fn text(body: &mut Map<String, Value>, value: &Value) -> Result<(), ConversionError> {
    let fields = match value {
        Value::Null => return Ok(()),
        Value::Object(fields) => fields,
        _ => return Err(malformed("text", "is no object")),
    };
    for (name, value) in fields {
        match name.as_str() {
            _ if value.is_null() => {}
            "format" => {
                if let Some(format) = response_format(value)? {
                    set(body, "response_format", format);
                }
            }
            "verbosity" => set(body, "verbosity", value.clone()),
            _ => return Err(unsaid(&format!("text.{name}"), "is set")),
        }
    }
    Ok(())
}

fn response_format(value: &Value) -> Result<Option<Value>, ConversionError> {
    let fields = value
        .as_object()
        .ok_or_else(|| malformed("text.format", "is no object"))?;
    match fields.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(json!({"type": "json_object"}))),
        Some("json_schema") => {
            let schema: Map<String, Value> = fields
                .iter()
                .filter(|(name, value)| *name != "type" && !value.is_null())
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect();
            Ok(Some(json!({"type": "json_schema", "json_schema": schema})))
        }
        kind => Err(unsaid(
            "text.format",
            format!("is of type `{}`", kind.unwrap_or("?")),
        )),
    }
}

fn set(body: &mut Map<String, Value>, name: &str, value: impl Into<Value>) {
    body.insert(name.to_owned(), value.into());
}

fn tools(value: &Value) -> Result<Vec<Value>, ConversionError> {
    let tools = value
        .as_array()
        .ok_or_else(|| malformed("tools", "is no list"))?;
    tools
        .iter()
        .enumerate()
        .map(|(index, tool)| {
            let fields = tool.as_object().ok_or_else(|| {
                malformed("tools", format!("has an entry {index} that is no object"))
            })?;
            match fields.get("type").and_then(Value::as_str) {
                Some("function") => Ok(function(fields)),
                kind => {
                    let kind = kind.unwrap_or("?");
                    let tool = format!("tool {index} is of type `{kind}`");
                    Err(ConversionError::OnlyResponses(tool))
                }
            }
        })
        .collect()
}

fn function(tool: &Map<String, Value>) -> Value {
    if tool.get("function").is_some_and(Value::is_object) {
        return Value::Object(tool.clone());
    }
    let function: Map<String, Value> = tool
        .iter()
        .filter(|(name, value)| *name != "type" && !value.is_null())
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    json!({"type": "function", "function": function})
}

fn choice(value: &Value) -> Result<Value, ConversionError> {
    let fields = match value {
        Value::String(_) => return Ok(value.clone()),
        Value::Object(fields) => fields,
        _ => return Err(malformed("tool_choice", "is neither a text nor an object")),
    };
    match fields.get("type").and_then(Value::as_str) {
        Some("function") => match given(fields, "name") {
            Some(name) => Ok(json!({"type": "function", "function": {"name": name}})),
            None if fields.contains_key("function") => Ok(value.clone()),
            None => Err(malformed("tool_choice", "names no function")),
        },
        Some("allowed_tools") => {
            if fields.contains_key("allowed_tools") {
                return Ok(value.clone());
            }
            let allowed = fields
                .get("tools")
                .and_then(Value::as_array)
                .ok_or_else(|| malformed("tool_choice", "lists no `tools`"))?;
            let tools = allowed
                .iter()
                .map(|tool| {
                    let kind = tool.get("type").and_then(Value::as_str);
                    if kind == Some("function") {
                        choice(tool)
                    } else {
                        Err(unsaid(
                            "tool_choice",
                            format!("allows a tool of type `{}`", kind.unwrap_or("?")),
                        ))
                    }
                })
                .collect::<Result<Vec<_>, _>>()?;
            let mode = given(fields, "mode").cloned().unwrap_or(json!("auto"));
            Ok(json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}))
        }
        kind => Err(unsaid(
            "tool_choice",
            format!("is of type `{}`", kind.unwrap_or("?")),
        )),
    }
}
