//! A conversation as both chat completions and responses write it, read no deeper than the model
//! needs: [`Item`] and [`Conversation`].

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::super::draws::{Draws, digest};

/// The text of a content: a string, a list of parts, one part, or nothing.
#[derive(Debug, Default, PartialEq)]
pub(in crate::sim) struct Text<'a>(pub Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("text or a list of parts")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Owned(text.to_owned())))
    }

    fn visit_unit<E: Error>(self) -> Result<Text<'de>, E> {
        Ok(Text::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Text<'de>, A::Error> {
        let mut whole: Text = parts.next_element()?.unwrap_or_default();
        while let Some(Text(part)) = parts.next_element()? {
            whole.0.to_mut().push_str(&part);
        }
        Ok(whole)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut part: A) -> Result<Text<'de>, A::Error> {
        let mut text = Text::default();
        while let Some(key) = part.next_key::<Cow<str>>()? {
            match &*key {
                "text" | "refusal" => text = part.next_value()?,
                _ => drop(part.next_value::<IgnoredAny>()?),
            }
        }
        Ok(text)
    }
}

/// The input of a response: a list of items, or what the user says.
#[derive(Debug)]
pub(super) struct Input<'a>(pub Vec<Item<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for Input<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(InputVisitor)
    }
}

struct InputVisitor;

impl<'de> Visitor<'de> for InputVisitor {
    type Value = Input<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("text or a list of items")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Input<'de>, E> {
        Ok(Input(vec![Item::user(Cow::Borrowed(text))]))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Input<'de>, E> {
        Ok(Input(vec![Item::user(Cow::Owned(text.to_owned()))]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Input<'de>, A::Error> {
        let mut input = Vec::new();
        while let Some(item) = items.next_element()? {
            input.push(item);
        }
        Ok(Input(input))
    }
}

/// A message of a chat, or an item of a response's input.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::sim) struct Item<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow)]
    content: Text<'a>,
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    arguments: Text<'a>,
    #[serde(borrow)]
    output: Text<'a>,
    #[serde(borrow)]
    tool_calls: Option<Vec<MadeCall<'a>>>,
}

#[derive(Debug, Deserialize)]
struct MadeCall<'a> {
    #[serde(borrow)]
    function: MadeFunction<'a>,
}

#[derive(Debug, Deserialize)]
struct MadeFunction<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(default, borrow)]
    arguments: Text<'a>,
}

impl<'a> Item<'a> {
    /// A message of the user.
    fn user(text: Cow<'a, str>) -> Self {
        Self {
            role: "user".into(),
            content: Text(text),
            ..Self::default()
        }
    }

    /// Who says it.
    pub(in crate::sim) fn role(&self) -> &str {
        &self.role
    }

    /// What is said.
    pub(in crate::sim) fn text(&self) -> &str {
        &self.content.0
    }

    fn is_of_model(&self) -> bool {
        self.role == "assistant" || matches!(&*self.kind, "function_call" | "reasoning")
    }

    /// Who says something, and what: the same for the same thing in either API.
    fn said(&self, mut hear: impl FnMut(&str, &str)) {
        match &*self.kind {
            "function_call" => hear(&self.name.0, &self.arguments.0),
            "function_call_output" => hear("tool", &self.output.0),
            // Chats do not carry what the model thought.
            "reasoning" => {}
            _ if !self.content.0.is_empty() => hear(&self.role, &self.content.0),
            _ => {}
        }
        for MadeCall { function } in self.tool_calls.iter().flatten() {
            hear(&function.name.0, &function.arguments.0);
        }
    }
}

/// What the model makes of a conversation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Conversation<'a> {
    /// What the user said first.
    pub start: &'a str,
    /// A number for all that was said, by whom, in order.
    pub digest: u64,
    /// How often the model has spoken.
    pub turns: u64,
    /// Words of the prompt.
    pub tokens: u64,
}

impl<'a> Conversation<'a> {
    /// Reads a conversation.
    pub(super) fn read(items: &'a [Item], instructions: &str) -> Self {
        let first = items.iter().find(|item| item.role == "user");
        let mut conversation = Self {
            start: first.map_or("", |item| &item.content.0),
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

/// What the model said last in a response, by the JSON text of it.
///
/// # Errors
/// The text is no response.
pub(in crate::sim) fn final_text(response: &str) -> Result<String, serde_json::Error> {
    #[derive(Deserialize)]
    struct Response<'a> {
        #[serde(borrow)]
        output: Vec<Item<'a>>,
    }
    let Response { output } = serde_json::from_str(response)?;
    let last = output.into_iter().rfind(|item| item.role == "assistant");
    Ok(last.map_or_else(String::new, |item| item.content.0.into_owned()))
}

/// How many words a text has; a word is a token.
pub(super) fn words(text: &str) -> u64 {
    text.split_ascii_whitespace().count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(json: &str) -> Vec<Item<'_>> {
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
