//! Tools and the choice between them.

use serde_json::{Map, Value, json};

use super::ConversionError;
use super::items::given;

pub(super) fn tools(value: &Value) -> Result<Vec<Value>, ConversionError> {
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
                kind => Err(ConversionError::Tool {
                    index,
                    kind: kind.unwrap_or("?").to_owned(),
                }),
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

pub(super) fn choice(value: &Value) -> Result<Value, ConversionError> {
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
                        Err(unsaid(format!(
                            "allows a tool of type `{}`",
                            kind.unwrap_or("?")
                        )))
                    }
                })
                .collect::<Result<Vec<_>, _>>()?;
            let mode = given(fields, "mode").cloned().unwrap_or(json!("auto"));
            Ok(json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}))
        }
        kind => Err(unsaid(format!("is of type `{}`", kind.unwrap_or("?")))),
    }
}

fn unsaid(problem: String) -> ConversionError {
    ConversionError::Parameter {
        name: "tool_choice".to_owned(),
        problem,
    }
}

fn malformed(name: &str, problem: impl Into<String>) -> ConversionError {
    ConversionError::MalformedParameter {
        name: name.to_owned(),
        problem: problem.into(),
    }
}
