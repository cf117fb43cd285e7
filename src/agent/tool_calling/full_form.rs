//! The form in which NeMo Gym's own agents answer: what was not said is there too, as null or as its
//! default. Who reads such answers may count on it.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::items::array;
use crate::json::{Object, splice, unquote};

const NULL: &str = "null";

/// Fields of a request.
const PARAMS: [(&str, &str); 22] = [
    ("background", NULL),
    ("include", NULL),
    ("instructions", NULL),
    ("max_output_tokens", NULL),
    ("max_tool_calls", NULL),
    ("metadata", NULL),
    ("model", NULL),
    ("parallel_tool_calls", "true"),
    ("previous_response_id", NULL),
    ("prompt", NULL),
    ("reasoning", NULL),
    ("service_tier", NULL),
    ("store", NULL),
    ("temperature", NULL),
    ("text", NULL),
    ("tool_choice", r#""auto""#),
    ("tools", "[]"),
    ("top_logprobs", NULL),
    ("top_p", NULL),
    ("truncation", NULL),
    ("user", NULL),
    ("stream", NULL),
];

/// Fields of a response.
const RESPONSE: [(&str, &str); 21] = [
    ("error", NULL),
    ("incomplete_details", NULL),
    ("instructions", NULL),
    ("metadata", NULL),
    ("temperature", NULL),
    ("top_p", NULL),
    ("background", NULL),
    ("conversation", NULL),
    ("max_output_tokens", NULL),
    ("max_tool_calls", NULL),
    ("previous_response_id", NULL),
    ("prompt", NULL),
    ("prompt_cache_key", NULL),
    ("reasoning", NULL),
    ("safety_identifier", NULL),
    ("service_tier", NULL),
    ("status", NULL),
    ("text", NULL),
    ("top_logprobs", NULL),
    ("truncation", NULL),
    ("user", NULL),
];

/// The text of a request's parameters with all their fields. What is no object stays as it is.
pub(super) fn params(text: &str) -> String {
    padded(text, &PARAMS)
}

/// The text of a response with all its fields.
pub(super) fn response(text: &str) -> String {
    padded(text, &RESPONSE)
}

/// The text of an array of items with all their fields.
pub(super) fn items(items: &[Box<RawValue>]) -> String {
    array(items.iter().map(|item| full_item(item.get())))
}

fn full_item(text: &str) -> String {
    let object = Object::parse(text).ok();
    let kind = object.as_ref().and_then(|object| object.get("type"));
    let Some(kind) = kind else {
        return padded(text, &[("type", r#""message""#)]);
    };
    match unquote(kind).as_deref() {
        Some("function_call" | "function_call_output") => {
            padded(text, &[("id", NULL), ("status", NULL)])
        }
        Some("reasoning") => padded(text, &[("encrypted_content", NULL), ("content", NULL)]),
        Some("message") => {
            let content = object.as_ref().and_then(|object| object.get("content"));
            let parts: Option<Vec<&RawValue>> =
                content.and_then(|content| serde_json::from_str(content).ok());
            let Some(parts) = parts else {
                return text.to_owned();
            };
            let parts = array(parts.into_iter().map(|part| full_part(part.get())));
            splice(text, &[("content", &parts)]).unwrap_or_else(|_| text.to_owned())
        }
        _ => text.to_owned(),
    }
}

fn full_part(text: &str) -> String {
    #[derive(Deserialize)]
    struct Part<'a> {
        #[serde(rename = "type")]
        kind: &'a str,
    }
    match serde_json::from_str(text) {
        Ok(Part {
            kind: "output_text",
        }) => padded(text, &[("logprobs", NULL)]),
        _ => text.to_owned(),
    }
}

/// An object with those fields that it lacks.
fn padded(text: &str, fields: &[(&str, &str)]) -> String {
    let missing = Object::parse(text).ok().map(|object| {
        let missing = fields.iter().filter(|field| object.get(field.0).is_none());
        missing.copied().collect::<Vec<_>>()
    });
    let padded = missing.and_then(|missing| splice(text, &missing).ok());
    padded.unwrap_or_else(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn what_is_there_stays_and_what_lacks_is_null_or_its_default() {
        let text = params(r#"{"input": [],  "temperature": 0.50, "tools": null}"#);
        assert!(
            text.starts_with(
                r#"{"input": [],  "temperature": 0.50, "tools": null,"background":null,"#
            ),
            "{text}"
        );
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value.as_object().unwrap().len(), 23);
        assert_eq!(
            (&value["parallel_tool_calls"], &value["tool_choice"]),
            (&true.into(), &"auto".into())
        );
        assert_eq!(params("[]"), "[]");
        assert!(
            response(r#"{"error": {"code": 1}}"#)
                .contains(r#"{"error": {"code": 1},"incomplete_details":null"#)
        );
    }

    #[test]
    fn items_are_padded_by_their_type() {
        for (item, expected) in [
            (
                r#"{"role":"user"}"#,
                r#"[{"role":"user","type":"message"}]"#,
            ),
            (
                r#"{"type":"function_call","id":"x"}"#,
                r#"[{"type":"function_call","id":"x","status":null}]"#,
            ),
            (
                r#"{"type":"reasoning","content":[1.0]}"#,
                r#"[{"type":"reasoning","content":[1.0],"encrypted_content":null}]"#,
            ),
            (
                r#"{"type":"message","content":[{"type":"output_text"},{"type":"refusal"}]}"#,
                r#"[{"type":"message","content":[{"type":"output_text","logprobs":null},{"type":"refusal"}]}]"#,
            ),
            (
                r#"{"type":"message","content":"hi"}"#,
                r#"[{"type":"message","content":"hi"}]"#,
            ),
            (r#"{"type":"future"}"#, r#"[{"type":"future"}]"#),
        ] {
            let item = RawValue::from_string(item.to_owned()).unwrap();
            assert_eq!(items(&[item]), expected);
        }
    }
}
