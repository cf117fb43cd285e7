use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

/// The fields of an output item that decide what happens next.
#[derive(Debug, Default, Deserialize)]
pub(super) struct OutputItem {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    role: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    arguments: Option<String>,
    #[serde(default)]
    call_id: Option<String>,
}

/// A tool call that the model asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ToolCall {
    pub(super) name: String,
    pub(super) arguments: String,
    pub(super) call_id: String,
}

/// The next request of a model.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// These calls, in this order.
    Calls(Vec<ToolCall>),
    /// Nothing more: there is a message.
    Done,
    /// Neither: the model only reasoned, for example.
    Nothing,
}

impl Wish {
    /// Reads the items of one answer.
    ///
    /// # Errors
    /// An item is malformed. The text says which one, and why.
    pub(super) fn of(output: &[Box<RawValue>]) -> Result<Self, String> {
        let mut calls = Vec::new();
        let mut has_message = false;
        for (index, item) in output.iter().enumerate() {
            let item: OutputItem = serde_json::from_str(item.get())
                .map_err(|source| format!("output[{index}] is not an item: {source}"))?;
            match item.kind.as_deref() {
                Some("function_call") => {
                    let (Some(name), Some(arguments), Some(call_id)) =
                        (item.name, item.arguments, item.call_id)
                    else {
                        return Err(format!(
                            "output[{index}] is a function_call without name, arguments or call_id"
                        ));
                    };
                    calls.push(ToolCall {
                        name,
                        arguments,
                        call_id,
                    });
                }
                Some("message") | None if item.role.as_deref() == Some("assistant") => {
                    has_message = true;
                }
                None => return Err(format!("output[{index}] has no type")),
                _ => {}
            }
        }
        Ok(match (calls.is_empty(), has_message) {
            (false, _) => Self::Calls(calls),
            (true, true) => Self::Done,
            (true, false) => Self::Nothing,
        })
    }
}

/// Returns an item of a model's output as it is sent to the model again: without the `status` of null that some servers
/// add to a reasoning item, since others refuse it.
pub(super) fn heard(item: &RawValue) -> Box<RawValue> {
    let text = item.get();
    if text.contains("\"reasoning\"")
        && text.contains("\"status\"")
        && let Ok(mut fields) = serde_json::from_str::<IndexMap<String, Box<RawValue>>>(text)
        && fields
            .get("type")
            .is_some_and(|kind| kind.get() == "\"reasoning\"")
        && fields
            .get("status")
            .is_some_and(|status| status.get() == "null")
    {
        fields.shift_remove("status");
        if let Ok(heard) = to_raw_value(&fields) {
            return heard;
        }
    }
    item.to_owned()
}

/// Serializes an item, which cannot fail.
pub(super) fn raw(value: &Value) -> Option<Box<RawValue>> {
    RawValue::from_string(value.to_string()).ok()
}

/// Returns the output of a tool as an item of the conversation.
pub(super) fn tool_output(call_id: &str, output: &str) -> Option<Box<RawValue>> {
    raw(&json!({"call_id": call_id, "output": output, "type": "function_call_output"}))
}

/// Returns a user message as an item of the conversation.
pub(super) fn user_message(text: &str) -> Option<Box<RawValue>> {
    raw(&json!({"content": text, "role": "user"}))
}

/// Joins JSON texts into the text of an array.
pub(super) fn array(items: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let mut text = String::from("[");
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push_str(item.as_ref());
    }
    text.push(']');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(output: &str) -> Result<Wish, String> {
        let items: Vec<Box<RawValue>> = serde_json::from_str(output).unwrap();
        Wish::of(&items)
    }

    #[test]
    fn calls_come_before_a_message_and_thinking_is_neither() {
        let call = r#"{"type":"function_call","name":"f","arguments":"{}","call_id":"c"}"#;
        let message = r#"{"type":"message","role":"assistant","content":[]}"#;
        let reasoning = r#"{"type":"reasoning","summary":[]}"#;
        let expected = || ToolCall {
            name: "f".into(),
            arguments: "{}".into(),
            call_id: "c".into(),
        };
        assert_eq!(wish(&format!("[{message}]")), Ok(Wish::Done));
        assert_eq!(wish(&format!("[{reasoning}]")), Ok(Wish::Nothing));
        assert_eq!(wish("[]"), Ok(Wish::Nothing));
        assert_eq!(
            wish(&format!("[{message},{call},{call}]")),
            Ok(Wish::Calls(vec![expected(), expected()]))
        );
        let error = wish(r#"[{"type":"function_call","name":"f"}]"#).unwrap_err();
        assert!(error.contains("output[0]"), "{error}");
        assert!(wish("[1]").is_err());
        assert!(wish(r#"[{"foo":1}]"#).is_err());
    }

    #[test]
    fn only_a_status_that_a_reasoning_item_has_not_is_left_out() {
        for (item, expected) in [
            (
                r#"{"type":"reasoning","status":null,"summary":[ 1.50]}"#,
                r#"{"type":"reasoning","summary":[ 1.50]}"#,
            ),
            (
                r#"{"type":"reasoning", "status":"completed"}"#,
                r#"{"type":"reasoning", "status":"completed"}"#,
            ),
            (
                r#"{"type":"message", "status":null, "x":"reasoning"}"#,
                r#"{"type":"message", "status":null, "x":"reasoning"}"#,
            ),
        ] {
            let item = RawValue::from_string(item.to_owned()).unwrap();
            assert_eq!(heard(&item).get(), expected);
        }
    }
}
