//! From the JSON of a request and an answer to the [`Item`]s of a conversation: items of the Responses API, as agents of
//! NeMo Gym answer, and messages of a chat, as agents within rollstream do. What has neither form is shown as it is.

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::json::{Object, unquote, value};
use crate::request::{AGENT_REF, MESSAGE_LOG, RESPONSES_CREATE_PARAMS};

/// A kind of item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A message; its name is the role.
    Message,
    /// What the model thought.
    Reasoning,
    /// A call of a tool; its name is the tool, its text the arguments.
    FunctionCall,
    /// The output of a tool.
    FunctionCallOutput,
    /// Anything else, as JSON; its name is the type.
    Other,
}

/// An item of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Item {
    /// Its kind.
    pub kind: Kind,
    /// The role of a message, the name of a tool.
    pub name: String,
    /// The id that a call and its output share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// The text.
    pub text: String,
    /// The images that stand in it as data: `data:image/...`.
    #[serde(skip)]
    pub images: Vec<String>,
}

impl Item {
    fn new(kind: Kind, name: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            kind,
            name: name.into(),
            call_id: None,
            text: text.into(),
            images: Vec::new(),
        }
    }

    /// A message.
    pub(super) fn message(role: &str, text: impl Into<String>) -> Self {
        Self::new(Kind::Message, role, text)
    }

    /// Something that has no other form.
    pub(super) fn other(name: &str, text: impl Into<String>) -> Self {
        Self::new(Kind::Other, name, text)
    }
}

/// What an image that stands in a text as data begins with.
const IMAGE: &str = "data:image/";

/// Returns the conversation before the first turn.
pub(super) fn prompt(request: &Object<'_>) -> Vec<Item> {
    let mut items = Vec::new();
    if let Some(messages) = request.get(MESSAGE_LOG) {
        add_all(messages, &mut items);
        return items;
    }
    let parameters = request.get(RESPONSES_CREATE_PARAMS);
    if let Some(parameters) = parameters.and_then(|text| Object::parse(text).ok()) {
        let instructions = parameters.get("instructions").map(content);
        if let Some(instructions) = instructions.filter(|text| !text.is_empty()) {
            items.push(Item::message("system", instructions));
        }
        if let Some(input) = parameters.get("input") {
            add_all(input, &mut items);
        }
    }
    items
}

/// Returns the names of the tools that a request offers.
pub(super) fn tools(request: &Object<'_>) -> Vec<String> {
    let parameters = request.get(RESPONSES_CREATE_PARAMS);
    let parameters = parameters.and_then(|text| Object::parse(text).ok());
    let tools = parameters.as_ref().and_then(|fields| fields.get("tools"));
    let tools = tools.and_then(|tools| serde_json::from_str::<Vec<&RawValue>>(tools).ok());
    let name = |tool: &RawValue| {
        let tool = Object::parse(tool.get()).ok()?;
        let function = tool.get("function").map(Object::parse);
        let function = function.and_then(Result::ok);
        let name = tool
            .get("name")
            .or_else(|| function.as_ref()?.get("name"))?;
        unquote(name).map(|name| name.into_owned())
    };
    tools.into_iter().flatten().filter_map(name).collect()
}

/// Adds the turns of an answer to the prompt. A log of messages has the prompt already.
pub(super) fn answer(answer: &Object<'_>, mut prompt: Vec<Item>) -> Vec<Item> {
    if let Some(messages) = answer.get(MESSAGE_LOG) {
        let mut items = Vec::new();
        add_all(messages, &mut items);
        return items;
    }
    let response = answer.get("response");
    if let Some(response) = response.and_then(|text| Object::parse(text).ok())
        && let Some(output) = response.get("output")
    {
        add_all(output, &mut prompt);
    }
    prompt
}

/// The fields of rows and answers that are shown elsewhere, or tell people nothing.
const HIDDEN: [&str; 5] = [
    RESPONSES_CREATE_PARAMS,
    MESSAGE_LOG,
    "response",
    AGENT_REF,
    crate::schema::REWARD,
];

/// Returns the other fields of a request or an answer, without those that `except` has with the same value.
pub(super) fn fields(object: &Object<'_>, except: Option<&Object<'_>>) -> Map<String, Value> {
    let fields = object.iter().filter(|(name, _, text)| {
        let is_same = except.and_then(|other| other.get(name));
        !HIDDEN.contains(name)
            && !name.starts_with('_')
            && !name.starts_with("ng_")
            && is_same.is_none_or(|other| other != *text && value(other) != value(text))
    });
    let fields = fields.filter_map(|(name, _, text)| Some((name.to_owned(), value(text)?)));
    fields.collect()
}

/// Words in the names of fields that say what the right answer is.
const EXPECTED: [&str; 8] = [
    "answer",
    "expected",
    "gold",
    "ground_truth",
    "label",
    "reference",
    "solution",
    "target",
];

/// The fields with what only the environment gets to see.
const HIDDEN_FROM_AGENT: [&str; 2] = ["extra_env_info", "verifier_metadata"];

/// Splits the fields of a task into those that say what the right answer is, and the others.
pub(super) fn expected(fields: Map<String, Value>) -> (Map<String, Value>, Map<String, Value>) {
    let is_expected = |name: &str| {
        let name = name.to_ascii_lowercase();
        EXPECTED.iter().any(|word| name.contains(word))
    };
    let fields = fields.into_iter();
    let (mut expected, others): (Map<_, _>, Map<_, _>) =
        fields.partition(|(name, _)| is_expected(name));
    for outer in HIDDEN_FROM_AGENT {
        let inner = others.get(outer).and_then(Value::as_object);
        let found = inner.into_iter().flatten();
        let found = found.filter(|(name, _)| is_expected(name));
        expected.extend(found.map(|(name, value)| (format!("{outer}.{name}"), value.clone())));
    }
    (expected, others)
}

/// Returns the last message of a user in a request, or what there is instead.
pub(super) fn question(request: &str) -> Option<String> {
    let request = Object::parse(request).ok()?;
    let items = prompt(&request);
    let of_user = |item: &&Item| item.kind == Kind::Message && item.name == "user";
    let asked = items.iter().rfind(of_user).or_else(|| items.last())?;
    Some(asked.text.clone())
}

fn list(json: &str) -> Option<Vec<&RawValue>> {
    serde_json::from_str(json).ok()
}

fn add_all(json: &str, items: &mut Vec<Item>) {
    if let Some(text) = unquote(json) {
        items.push(Item::message("user", text));
    } else if let Some(list) = list(json) {
        list.into_iter().for_each(|item| add(item.get(), items));
    } else {
        items.push(Item::other("", json));
    }
}

fn add(json: &str, items: &mut Vec<Item>) {
    let Ok(item) = Object::parse(json) else {
        items.push(Item::other("", json));
        return;
    };
    let string = |name: &str| item.get(name).and_then(unquote).unwrap_or_default();
    let text = |name: &str| item.get(name).map(content).unwrap_or_default();
    let call_id = |name: &str| {
        let id = string(name);
        (!id.is_empty()).then(|| id.into_owned())
    };
    let role = string("role");
    match &*string("type") {
        "function_call" => items.push(Item {
            call_id: call_id("call_id"),
            ..Item::new(Kind::FunctionCall, string("name"), text("arguments"))
        }),
        "function_call_output" => items.push(Item {
            call_id: call_id("call_id"),
            images: item.get("output").map(images).unwrap_or_default(),
            ..Item::new(Kind::FunctionCallOutput, string("name"), text("output"))
        }),
        "reasoning" => {
            let texts = [text("summary"), text("content")];
            let texts: Vec<String> = texts.into_iter().filter(|text| !text.is_empty()).collect();
            let thought = texts.join("\n");
            let is_hidden = thought.is_empty() && item.contains("encrypted_content");
            let thought = if is_hidden {
                "[encrypted]".to_owned()
            } else {
                thought
            };
            items.push(Item::new(Kind::Reasoning, "", thought));
        }
        "" | "message" if role == "tool" => items.push(Item {
            call_id: call_id("tool_call_id"),
            images: item.get("content").map(images).unwrap_or_default(),
            ..Item::new(Kind::FunctionCallOutput, string("name"), text("content"))
        }),
        "" | "message" if !role.is_empty() => add_message(&item, &role, items),
        kind => items.push(Item::other(kind, json)),
    }
}

/// Adds a message, the reasoning before it, and the calls of tools that it makes.
fn add_message(message: &Object<'_>, role: &str, items: &mut Vec<Item>) {
    let text = |name: &str| message.get(name).map(content).unwrap_or_default();
    let thought = text("reasoning_content");
    if !thought.is_empty() {
        items.push(Item::new(Kind::Reasoning, "", thought));
    }
    let calls = message.get("tool_calls").and_then(list).unwrap_or_default();
    let said = text("content");
    if !said.is_empty() || calls.is_empty() {
        items.push(Item {
            images: message.get("content").map(images).unwrap_or_default(),
            ..Item::message(role, said)
        });
    }
    for call in calls {
        let call = Object::parse(call.get()).unwrap_or_default();
        let function = call.get("function").map(Object::parse);
        let function = function.and_then(Result::ok).unwrap_or_default();
        let name = function.get("name").and_then(unquote).unwrap_or_default();
        let arguments = function.get("arguments").map(content).unwrap_or_default();
        let id = call.get("id").and_then(unquote);
        items.push(Item {
            call_id: id.map(|id| id.into_owned()),
            ..Item::new(Kind::FunctionCall, name, arguments)
        });
    }
}

/// Returns the text of a content: a string, or parts.
fn content(json: &str) -> String {
    if json == "null" {
        return String::new();
    }
    if let Some(text) = unquote(json) {
        return text.into_owned();
    }
    match list(json) {
        Some(parts) => {
            let parts: Vec<String> = parts.into_iter().map(|part| part_of(part.get())).collect();
            parts.join("\n")
        }
        None => json.to_owned(),
    }
}

/// Returns the images of a content that stand in it as data, as the Responses API or a chat has them.
fn images(json: &str) -> Vec<String> {
    if !json.contains(IMAGE) {
        return Vec::new();
    }
    let image = |part: &RawValue| {
        let part = Object::parse(part.get()).ok()?;
        let image = part.get("image_url")?;
        let named = Object::parse(image).ok();
        let named = named.as_ref().and_then(|image| image.get("url"));
        let url = unquote(named.unwrap_or(image))?;
        url.starts_with(IMAGE).then(|| url.into_owned())
    };
    list(json)
        .unwrap_or_default()
        .into_iter()
        .filter_map(image)
        .collect()
}

fn part_of(json: &str) -> String {
    if let Some(text) = unquote(json) {
        return text.into_owned();
    }
    let Ok(part) = Object::parse(json) else {
        return json.to_owned();
    };
    let text = part.get("text").or_else(|| part.get("refusal"));
    match (text.and_then(unquote), part.get("type").and_then(unquote)) {
        (Some(text), _) => text.into_owned(),
        (None, Some(kind)) => format!("[{kind}]"),
        (None, None) => json.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(request: &Value, answered: &Value) -> Vec<(Kind, String, String)> {
        let (request, answered) = (request.to_string(), answered.to_string());
        let request = Object::parse(&request).unwrap();
        let items = answer(&Object::parse(&answered).unwrap(), prompt(&request));
        let shown = items
            .into_iter()
            .map(|item| (item.kind, item.name, item.text));
        shown.collect()
    }

    fn item(kind: Kind, name: &str, text: &str) -> (Kind, String, String) {
        (kind, name.into(), text.into())
    }

    #[test]
    fn items_of_a_response_follow_the_prompt() {
        let request =
            json!({"responses_create_params": {"instructions": "Be brief.", "input": "2 + 3?"}});
        let answer = json!({"response": {"output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "function_call", "name": "add", "arguments": "{\"a\": 2}", "call_id": "c"},
            {"type": "function_call_output", "call_id": "c", "output": "5"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "5"}]},
            {"type": "web_search_call", "id": "w"},
            7,
        ]}});
        let expected = [
            item(Kind::Message, "system", "Be brief."),
            item(Kind::Message, "user", "2 + 3?"),
            item(Kind::Reasoning, "", "hm"),
            item(Kind::FunctionCall, "add", "{\"a\": 2}"),
            item(Kind::FunctionCallOutput, "", "5"),
            item(Kind::Message, "assistant", "5"),
            item(
                Kind::Other,
                "web_search_call",
                r#"{"type":"web_search_call","id":"w"}"#,
            ),
            item(Kind::Other, "", "7"),
        ];
        assert_eq!(of(&request, &answer), expected);
    }

    #[test]
    fn images_that_stand_in_a_content_are_kept() {
        let response = json!([
            {"type": "input_text", "text": "look"},
            {"type": "input_image", "image_url": "data:image/png;base64,AA=="},
            {"type": "input_image", "image_url": "https://example.com/x.png"},
        ]);
        let chat =
            json!([{"type": "image_url", "image_url": {"url": "data:image/gif;base64,BB=="}}]);
        assert_eq!(
            images(&response.to_string()),
            ["data:image/png;base64,AA=="]
        );
        assert_eq!(images(&chat.to_string()), ["data:image/gif;base64,BB=="]);
        assert_eq!(
            images("\"data:image/png;base64,AA==\""),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_log_of_messages_has_the_prompt_already() {
        let request = json!({"message_log": [{"role": "user", "content": "2 + 3?"}]});
        let answer = json!({"message_log": [
            {"role": "user", "content": "2 + 3?", "token_ids": [1]},
            {"role": "assistant", "content": null, "reasoning_content": "hm",
                "tool_calls": [{"id": "c", "function": {"name": "add", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "5"},
            {"role": "assistant", "content": ["5", {"type": "image"}]},
        ]});
        let expected = [
            item(Kind::Message, "user", "2 + 3?"),
            item(Kind::Reasoning, "", "hm"),
            item(Kind::FunctionCall, "add", "{}"),
            item(Kind::FunctionCallOutput, "", "5"),
            item(Kind::Message, "assistant", "5\n[image]"),
        ];
        assert_eq!(of(&request, &answer), expected);
    }
}
