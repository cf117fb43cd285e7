//! The parts of a message's content.

use serde_json::{Map, Value, json};

use super::ConversionError;
use super::items::{Item, given};

/// What chat has for the content of a message that is not the assistant's.
pub(super) fn content(item: Item<'_>, value: Option<&Value>) -> Result<Value, ConversionError> {
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

/// The content of a tool's answer: texts, since chat's tool messages have nothing else.
pub(super) fn tool_content(item: Item<'_>, value: &Value) -> Result<Value, ConversionError> {
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

/// What an assistant said, and what it refused with.
#[derive(Default)]
pub(super) struct Said {
    pub text: Option<String>,
    pub refusal: Option<String>,
}

pub(super) fn assistant_content(
    item: Item<'_>,
    value: Option<&Value>,
) -> Result<Said, ConversionError> {
    let mut said = Said::default();
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

fn input_part(item: Item<'_>, index: usize, value: &Value) -> Result<Value, ConversionError> {
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
    item: Item<'_>,
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
    item: Item<'_>,
    index: usize,
    part: &'a Map<String, Value>,
    name: &str,
) -> Result<&'a str, ConversionError> {
    part.get(name)
        .and_then(Value::as_str)
        .ok_or_else(|| item.malformed(format!("has a part {index} whose `{name}` is not a text")))
}

fn text_part(
    item: Item<'_>,
    index: usize,
    part: &Map<String, Value>,
) -> Result<Value, ConversionError> {
    Ok(json!({"type": "text", "text": part_text(item, index, part, "text")?}))
}

/// The URL in a field that is one, or an object with one.
fn url_of<'a>(part: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    let value = part.get(name)?;
    let url = value.get("url").unwrap_or(value).as_str()?;
    (!url.is_empty()).then_some(url)
}
