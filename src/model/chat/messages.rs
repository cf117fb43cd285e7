//! Converts Responses items to chat messages.

use serde_json::{Map, Value, json};

use super::{ConversionError, InputItem, given, response};

pub(super) fn messages(input: &[Value]) -> Result<Vec<Value>, ConversionError> {
    let mut writer = MessageWriter::default();
    for (index, value) in input.iter().enumerate() {
        writer.item(InputItem::new(index, value)?)?;
    }
    writer.end_turn();
    Ok(writer.messages)
}

/// Puts `instructions` first. System and developer messages that follow become part of it, as in NeMo Gym: many chat
/// templates accept only one such message.
pub(super) fn instruct(messages: &mut Vec<Value>, instructions: &str) {
    let mut texts = vec![instructions.to_owned()];
    let leading = messages.iter().map_while(|message| {
        let role = message.get("role").and_then(Value::as_str);
        matches!(role, Some("system" | "developer")).then(|| text_of(message))?
    });
    texts.extend(leading);
    let system = json!({"role": "system", "content": texts.join("\n\n")});
    messages.splice(..texts.len() - 1, [system]);
}

fn text_of(message: &Value) -> Option<String> {
    match message.get("content")? {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => parts
            .iter()
            .map(|part| part.get("text").and_then(Value::as_str))
            .collect(),
        _ => None,
    }
}

#[derive(Default)]
struct MessageWriter {
    messages: Vec<Value>,
    turn: Option<AssistantTurn>,
}

/// The assistant message that items are being added to.
#[derive(Default)]
struct AssistantTurn {
    reasoning: Vec<String>,
    text: Option<String>,
    refusal: Option<String>,
    calls: Vec<Value>,
    tokens: Map<String, Value>,
}

impl MessageWriter {
    fn item(&mut self, item: InputItem<'_>) -> Result<(), ConversionError> {
        match item.kind {
            "message" => self.message(item)?,
            "reasoning" => {
                let reasoning = reasoning(item)?;
                self.turn_before_text().reasoning.extend(reasoning);
            }
            "function_call" => {
                let call = json!({
                    "id": item.text("call_id")?,
                    "type": "function",
                    "function": {"name": item.text("name")?, "arguments": item.text("arguments")?},
                });
                self.turn.get_or_insert_default().calls.push(call);
            }
            "function_call_output" => {
                let output = item
                    .fields
                    .get("output")
                    .ok_or_else(|| item.malformed("has no `output`"))?;
                let content = tool_content(item, output)?;
                self.tool(item.text("call_id")?, content);
            }
            kind => {
                let index = item.index;
                return Err(ConversionError::OnlyResponses(format!(
                    "item {index} of the conversation is of type `{kind}`"
                )));
            }
        }
        // A turn's tokens are on its last item, since one answer of the model produced all its items.
        if let (Some(turn), Some(tokens)) =
            (self.turn.as_mut(), response::tokens_of_item(item.fields))
        {
            turn.tokens = tokens;
        }
        Ok(())
    }

    fn message(&mut self, item: InputItem<'_>) -> Result<(), ConversionError> {
        let content = item.fields.get("content");
        match item.text("role")? {
            "assistant" => self.assistant(item, content),
            role @ ("user" | "system" | "developer") => {
                let mut message = Map::new();
                message.insert("role".to_owned(), json!(role));
                message.insert("content".to_owned(), plain_content(item, content)?);
                if let Some(name) = given(item.fields, "name") {
                    message.insert("name".to_owned(), name.clone());
                }
                self.end_turn();
                self.messages.push(Value::Object(message));
                Ok(())
            }
            // Datasets that were written for chat have such messages.
            "tool" => {
                let content = tool_content(item, content.unwrap_or(&json!("")))?;
                self.tool(item.text("tool_call_id")?, content);
                Ok(())
            }
            role => Err(item.malformed(format!("has the unknown role `{role}`"))),
        }
    }

    fn assistant(
        &mut self,
        item: InputItem<'_>,
        content: Option<&Value>,
    ) -> Result<(), ConversionError> {
        let mut said = assistant_content(item, content)?;
        if let Some(Value::String(refusal)) = item.fields.get("refusal") {
            said.refusal.get_or_insert_default().push_str(refusal);
        }
        let calls = match given(item.fields, "tool_calls") {
            None => Vec::new(),
            Some(Value::Array(calls)) => calls.clone(),
            Some(_) => return Err(item.malformed("has `tool_calls` that are no list")),
        };
        let reasoning = ["reasoning_content", "reasoning"]
            .into_iter()
            .find_map(|name| item.fields.get(name)?.as_str())
            .filter(|text| !text.is_empty());
        let turn = self.turn_before_text();
        turn.reasoning.extend(reasoning.map(str::to_owned));
        for (place, text) in [
            (&mut turn.text, said.text),
            (&mut turn.refusal, said.refusal),
        ] {
            if let Some(text) = text {
                place.get_or_insert_default().push_str(&text);
            }
        }
        turn.calls.extend(calls);
        Ok(())
    }

    fn tool(&mut self, call_id: &str, content: Value) {
        self.end_turn();
        self.messages
            .push(json!({"role": "tool", "tool_call_id": call_id, "content": content}));
    }

    /// Returns the turn for reasoning or text: a new one after text, so that two messages stay two. Not after calls,
    /// whose outputs have to follow their message at once.
    fn turn_before_text(&mut self) -> &mut AssistantTurn {
        let is_said = self.turn.as_ref().is_some_and(|turn| {
            turn.calls.is_empty() && (turn.text.is_some() || turn.refusal.is_some())
        });
        if is_said {
            self.end_turn();
        }
        self.turn.get_or_insert_default()
    }

    fn end_turn(&mut self) {
        let Some(turn) = self.turn.take() else {
            return;
        };
        let mut message = Map::new();
        message.insert("role".to_owned(), json!("assistant"));
        let has_text = turn.text.as_ref().is_some_and(|text| !text.is_empty());
        let may_be_null = !turn.calls.is_empty() || turn.refusal.is_some();
        let content = if may_be_null && !has_text {
            Value::Null
        } else {
            Value::String(turn.text.unwrap_or_default())
        };
        message.insert("content".to_owned(), content);
        if let Some(refusal) = turn.refusal {
            message.insert("refusal".to_owned(), Value::String(refusal));
        }
        if !turn.reasoning.is_empty() {
            let reasoning = Value::String(turn.reasoning.join("\n"));
            message.insert("reasoning_content".to_owned(), reasoning.clone());
            // The name of the field in vLLM from 0.16 on.
            message.insert("reasoning".to_owned(), reasoning);
        }
        if !turn.calls.is_empty() {
            message.insert("tool_calls".to_owned(), Value::Array(turn.calls));
        }
        message.extend(turn.tokens);
        self.messages.push(Value::Object(message));
    }
}

/// Returns the texts of the reasoning itself, or else of its summary.
fn reasoning(item: InputItem<'_>) -> Result<Vec<String>, ConversionError> {
    for name in ["content", "summary"] {
        let parts = match given(item.fields, name) {
            None => continue,
            Some(Value::Array(parts)) => parts,
            Some(_) => return Err(item.malformed(format!("has a `{name}` that is no list"))),
        };
        let texts = parts
            .iter()
            .enumerate()
            .map(|(index, part)| {
                let text = part.get("text").and_then(Value::as_str);
                text.map(str::to_owned).ok_or_else(|| {
                    item.malformed(format!("has a part {index} of `{name}` without a text"))
                })
            })
            .filter(|text| !text.as_ref().is_ok_and(String::is_empty))
            .collect::<Result<Vec<_>, _>>()?;
        if !texts.is_empty() {
            return Ok(texts);
        }
    }
    Ok(Vec::new())
}

/// Converts the content of a message that is not the assistant's.
fn plain_content(item: InputItem<'_>, value: Option<&Value>) -> Result<Value, ConversionError> {
    match value {
        Some(Value::String(text)) => Ok(Value::String(text.clone())),
        None | Some(Value::Null) => Ok(Value::String(String::new())),
        Some(Value::Array(parts)) => parts
            .iter()
            .enumerate()
            .map(|(index, part)| input_part(item, index, part))
            .collect(),
        Some(_) => Err(item.malformed("has content that is neither a text nor a list of parts")),
    }
}

/// Converts the content of a tool's answer: only texts, since chat's tool messages have nothing else.
fn tool_content(item: InputItem<'_>, value: &Value) -> Result<Value, ConversionError> {
    match value {
        Value::String(text) => Ok(Value::String(text.clone())),
        Value::Array(parts) => parts
            .iter()
            .enumerate()
            .map(|(index, value)| {
                let (kind, part) = part_of(item, index, value)?;
                match kind {
                    "input_text" | "output_text" | "text" => text_part(item, index, part),
                    _ => Err(item.part(index, format!("of type `{kind}`"))),
                }
            })
            .collect(),
        _ => Err(item.malformed("has an output that is neither a text nor a list of parts")),
    }
}

/// The text of an assistant, and its refusal.
#[derive(Default)]
struct AssistantContent {
    text: Option<String>,
    refusal: Option<String>,
}

fn assistant_content(
    item: InputItem<'_>,
    value: Option<&Value>,
) -> Result<AssistantContent, ConversionError> {
    let mut said = AssistantContent::default();
    let parts = match value {
        None | Some(Value::Null) => return Ok(said),
        Some(Value::String(text)) => {
            said.text = Some(text.clone());
            return Ok(said);
        }
        Some(Value::Array(parts)) => parts,
        Some(_) => {
            return Err(item.malformed("has content that is neither a text nor a list of parts"));
        }
    };
    for (index, value) in parts.iter().enumerate() {
        let (kind, part) = part_of(item, index, value)?;
        let (name, place) = match kind {
            "output_text" | "input_text" | "text" => ("text", &mut said.text),
            "refusal" => ("refusal", &mut said.refusal),
            _ => return Err(item.part(index, format!("of type `{kind}`"))),
        };
        let text = part_text(item, index, part, name)?;
        place.get_or_insert_default().push_str(text);
    }
    Ok(said)
}

fn input_part(item: InputItem<'_>, index: usize, value: &Value) -> Result<Value, ConversionError> {
    let (kind, part) = part_of(item, index, value)?;
    match kind {
        "input_text" | "output_text" | "text" => text_part(item, index, part),
        "input_image" => {
            let url = url_of(part, "image_url").ok_or_else(|| {
                item.part(
                    index,
                    if given(part, "file_id").is_some() {
                        "an `input_image` with a `file_id`"
                    } else {
                        "an `input_image` without `image_url`"
                    },
                )
            })?;
            let detail = given(part, "detail").cloned().unwrap_or(json!("auto"));
            Ok(json!({"type": "image_url", "image_url": {"url": url, "detail": detail}}))
        }
        "input_video" => {
            let url = url_of(part, "video_url")
                .or_else(|| url_of(part, "video"))
                .ok_or_else(|| item.part(index, "an `input_video` without `video_url`"))?;
            Ok(json!({"type": "video_url", "video_url": {"url": url}}))
        }
        "input_file" => {
            if given(part, "file_url").is_some() {
                return Err(item.part(index, "an `input_file` with a `file_url`"));
            }
            let file: Map<String, Value> = ["file_data", "file_id", "filename"]
                .into_iter()
                .filter_map(|name| Some((name.to_owned(), given(part, name)?.clone())))
                .collect();
            if !file.contains_key("file_data") && !file.contains_key("file_id") {
                let what = "an `input_file` without `file_data` and `file_id`";
                return Err(item.part(index, what));
            }
            Ok(json!({"type": "file", "file": file}))
        }
        "input_audio" if part.get("input_audio").is_some_and(Value::is_object) => {
            Ok(Value::Object(part.clone()))
        }
        "input_audio" => Err(item.part(index, "an `input_audio` without data and format")),
        // Data sets that were written for chat spell these as chat does already.
        "image_url" | "video_url" | "audio_url" | "file" => Ok(Value::Object(part.clone())),
        _ => Err(item.part(index, format!("of type `{kind}`"))),
    }
}

fn part_of<'a>(
    item: InputItem<'_>,
    index: usize,
    value: &'a Value,
) -> Result<(&'a str, &'a Map<String, Value>), ConversionError> {
    let part = value.as_object();
    let kind = part
        .and_then(|part| part.get("type"))
        .and_then(Value::as_str);
    part.and_then(|part| Some((kind?, part)))
        .ok_or_else(|| item.malformed(format!("has a part {index} without a type")))
}

fn part_text<'a>(
    item: InputItem<'_>,
    index: usize,
    part: &'a Map<String, Value>,
    name: &str,
) -> Result<&'a str, ConversionError> {
    part.get(name)
        .and_then(Value::as_str)
        .ok_or_else(|| item.malformed(format!("has a part {index} whose `{name}` is not a text")))
}

fn text_part(
    item: InputItem<'_>,
    index: usize,
    part: &Map<String, Value>,
) -> Result<Value, ConversionError> {
    Ok(json!({"type": "text", "text": part_text(item, index, part, "text")?}))
}

/// Returns the URL in a field that is a URL, or an object with one.
fn url_of<'a>(part: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    let value = part.get(name)?;
    let url = value.get("url").unwrap_or(value).as_str()?;
    (!url.is_empty()).then_some(url)
}
