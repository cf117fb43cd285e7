//! A conversation, as both chat completions and responses write it: [`Item`] and [`Conversation`].

use serde::Deserialize;
use serde::de::{Deserializer, Error};
use serde_json::Value;

use super::super::draws::{Draws, digest};

/// A message of a chat, or an item of a response's input.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::sim) struct Item {
    #[serde(rename = "type")]
    kind: String,
    /// Who says it.
    pub role: String,
    /// What is said.
    #[serde(deserialize_with = "text")]
    pub content: String,
    #[serde(deserialize_with = "text")]
    name: String,
    #[serde(deserialize_with = "text")]
    arguments: String,
    #[serde(deserialize_with = "text")]
    output: String,
    tool_calls: Option<Vec<ToolCall>>,
}

#[derive(Debug, Deserialize)]
struct ToolCall {
    function: Item,
}

impl Item {
    fn is_of_model(&self) -> bool {
        self.role == "assistant" || matches!(&*self.kind, "function_call" | "reasoning")
    }

    /// Calls `hear` with the speaker and the text of what is said, the same in either API.
    fn said(&self, mut hear: impl FnMut(&str, &str)) {
        match &*self.kind {
            "function_call" => hear(&self.name, &self.arguments),
            "function_call_output" => hear("tool", &self.output),
            // Chats do not carry the reasoning.
            "reasoning" => {}
            _ if !self.content.is_empty() => hear(&self.role, &self.content),
            _ => {}
        }
        for ToolCall { function } in self.tool_calls.iter().flatten() {
            hear(&function.name, &function.arguments);
        }
    }
}

/// Reads the text of a content: a string, a list of parts, one part, or null.
pub(super) fn text<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    fn append(content: &Value, text: &mut String) -> bool {
        match content {
            Value::Null => true,
            Value::String(part) => {
                text.push_str(part);
                true
            }
            Value::Array(parts) => parts.iter().all(|part| append(part, text)),
            Value::Object(part) => {
                let part = part.get("text").or_else(|| part.get("refusal"));
                part.is_none_or(|part| append(part, text))
            }
            Value::Bool(_) | Value::Number(_) => false,
        }
    }
    let mut text = String::new();
    if append(&Value::deserialize(from)?, &mut text) {
        Ok(text)
    } else {
        Err(D::Error::custom("expected text or a list of parts"))
    }
}

/// Reads a list of messages or items; a text alone is a message of the user.
pub(super) fn items<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Item>, D::Error> {
    match Value::deserialize(from)? {
        Value::String(content) => Ok(vec![Item {
            role: "user".to_owned(),
            content,
            ..Item::default()
        }]),
        items => serde_json::from_value(items).map_err(D::Error::custom),
    }
}

/// What the model reads from a conversation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Conversation<'a> {
    /// What the user said first.
    pub start: &'a str,
    /// A hash of all that was said, by whom, in order.
    pub digest: u64,
    /// How often the model has spoken.
    pub turns: u64,
    /// The number of words of the prompt.
    pub tokens: u64,
}

impl<'a> Conversation<'a> {
    pub(super) fn read(items: &'a [Item], instructions: &str) -> Self {
        let first = items.iter().find(|item| item.role == "user");
        let mut conversation = Self {
            start: first.map_or("", |item| &item.content),
            digest: 0,
            turns: 0,
            tokens: words(instructions),
        };
        let mut of_model = false;
        for item in items {
            let began = item.is_of_model() && !of_model;
            conversation.turns += u64::from(began);
            of_model = item.is_of_model();
            item.said(|who, what| {
                let parts = [digest(who.as_bytes()), digest(what.as_bytes())];
                conversation.digest = Draws::keyed(conversation.digest, &parts).next_u64();
                conversation.tokens += words(what);
            });
        }
        conversation
    }
}

/// Returns what the model said last in a response, by its JSON text.
pub(in crate::sim) fn final_text(response: &str) -> Result<String, serde_json::Error> {
    #[derive(Deserialize)]
    struct Response {
        output: Vec<Item>,
    }
    let Response { output } = serde_json::from_str(response)?;
    let last = output.into_iter().rfind(|item| item.role == "assistant");
    Ok(last.map_or_else(String::new, |item| item.content))
}

/// Counts the words of a text; a word is a token.
pub(super) fn words(text: &str) -> u64 {
    text.split_ascii_whitespace().count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(json: &str) -> Vec<Item> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn both_apis_tell_the_same_story() {
        let chat = items(
            r#"[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "6 rows of 7?"},
                {"role": "assistant", "content": null, "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}},
                    {"id": "b", "type": "function", "function": {"name": "add", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "a", "content": "one"},
                {"role": "tool", "tool_call_id": "b", "content": "two"},
                {"role": "assistant", "content": "Well."}, {"role": "user", "content": "And?"}]"#,
        );
        let responses = items(
            r#"[{"role": "system", "content": [{"type": "input_text", "text": "Be "}, {"type": "input_text", "text": "brief."}]},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "6 rows of 7?"}]},
                {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
                {"type": "function_call", "call_id": "a", "name": "add", "arguments": "{\"a\": 1}"},
                {"type": "function_call", "call_id": "b", "name": "add", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "a", "output": "one"},
                {"type": "function_call_output", "call_id": "b", "output": "two"},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Well.", "annotations": []}]},
                {"role": "user", "content": "And?"}]"#,
        );
        let chat = Conversation::read(&chat, "");
        assert_eq!(chat, Conversation::read(&responses, ""));
        assert_eq!(
            (chat.start, chat.turns, chat.tokens),
            ("6 rows of 7?", 2, 13)
        );
    }

    #[test]
    fn what_is_said_by_whom_and_when_makes_a_difference() {
        let digest = |json: &str| Conversation::read(&items(json), "").digest;
        let digests: std::collections::BTreeSet<u64> = [
            r#"[]"#,
            r#"[{"role": "user", "content": "a"}]"#,
            r#"[{"role": "system", "content": "a"}]"#,
            r#"[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]"#,
            r#"[{"role": "user", "content": "b"}, {"role": "user", "content": "a"}]"#,
        ]
        .map(digest)
        .into();
        assert_eq!(digests.len(), 5);
    }

    #[test]
    fn what_is_no_text_is_an_error() {
        for json in [r#"[{"role": "user", "content": 3}]"#, r#"[3]"#] {
            assert!(serde_json::from_str::<Vec<Item>>(json).is_err(), "{json}");
        }
    }
}
