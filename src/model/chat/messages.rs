//! Responses items as chat messages.

use serde_json::{Map, Value, json};

use super::items::{Item, given};
use super::{ConversionError, parts, tokens};

pub(super) fn messages(input: &[Value]) -> Result<Vec<Value>, ConversionError> {
    let mut writer = Writer::default();
    for (index, value) in input.iter().enumerate() {
        writer.item(Item::new(index, value)?)?;
    }
    writer.end_turn();
    Ok(writer.messages)
}

/// Puts `instructions` first. System and developer messages that follow become part of it, as in NeMo Gym: many chat
/// templates have a place for one such message only.
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
struct Writer {
    messages: Vec<Value>,
    turn: Option<Turn>,
}

/// The assistant message that items are being added to.
#[derive(Default)]
struct Turn {
    reasoning: Vec<String>,
    text: Option<String>,
    refusal: Option<String>,
    calls: Vec<Value>,
    tokens: Map<String, Value>,
}

impl Writer {
    fn item(&mut self, item: Item<'_>) -> Result<(), ConversionError> {
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
                let content = parts::tool_content(item, output)?;
                self.tool(item.text("call_id")?, content);
            }
            kind => {
                return Err(ConversionError::Item {
                    index: item.index,
                    kind: kind.to_owned(),
                });
            }
        }
        // A turn's tokens are on its last item, since one answer of the model made them all.
        if let (Some(turn), Some(tokens)) = (self.turn.as_mut(), tokens::of_item(item.fields)) {
            turn.tokens = tokens;
        }
        Ok(())
    }

    fn message(&mut self, item: Item<'_>) -> Result<(), ConversionError> {
        let content = item.fields.get("content");
        match item.text("role")? {
            "assistant" => self.assistant(item, content),
            role @ ("user" | "system" | "developer") => {
                let mut message = Map::new();
                message.insert("role".to_owned(), json!(role));
                message.insert("content".to_owned(), parts::content(item, content)?);
                if let Some(name) = given(item.fields, "name") {
                    message.insert("name".to_owned(), name.clone());
                }
                self.end_turn();
                self.messages.push(Value::Object(message));
                Ok(())
            }
            // Data sets that were written for chat have such messages.
            "tool" => {
                let content = parts::tool_content(item, content.unwrap_or(&json!("")))?;
                self.tool(item.text("tool_call_id")?, content);
                Ok(())
            }
            role => Err(item.malformed(format!("has the unknown role `{role}`"))),
        }
    }

    fn assistant(
        &mut self,
        item: Item<'_>,
        content: Option<&Value>,
    ) -> Result<(), ConversionError> {
        let mut said = parts::assistant_content(item, content)?;
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

    /// The turn that reasoning or text goes to: a new one after text, so that two messages stay two. Not after calls,
    /// whose outputs have to follow their message at once.
    fn turn_before_text(&mut self) -> &mut Turn {
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
            // What vLLM calls it from 0.16 on.
            message.insert("reasoning".to_owned(), reasoning);
        }
        if !turn.calls.is_empty() {
            message.insert("tool_calls".to_owned(), Value::Array(turn.calls));
        }
        message.extend(turn.tokens);
        self.messages.push(Value::Object(message));
    }
}

/// The texts of the reasoning itself, or else of its summary.
fn reasoning(item: Item<'_>) -> Result<Vec<String>, ConversionError> {
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
