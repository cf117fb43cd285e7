use std::borrow::Cow;

use serde_json::Value;

/// The text in a message's content: that of its parts, one after the other. What is not text, such
/// as an image, is left out.
pub fn text_in(content: &Value) -> Cow<'_, str> {
    match content {
        Value::String(text) => Cow::Borrowed(text),
        Value::Array(parts) => parts.iter().filter_map(text_of_part).collect(),
        _ => Cow::Borrowed(""),
    }
}

/// A content whose parts are all text, as one text; any other as it is.
pub fn joined(content: &Value) -> Value {
    let texts = match content {
        Value::Array(parts) => parts.iter().map(text_of_part).collect::<Option<String>>(),
        _ => None,
    };
    texts.map_or_else(|| content.clone(), Value::String)
}

fn text_of_part(part: &Value) -> Option<&str> {
    if let Value::String(text) = part {
        return Some(text);
    }
    let kind = part.get("type").and_then(Value::as_str);
    match kind {
        Some("text" | "input_text" | "output_text") | None => part.get("text")?.as_str(),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parts_are_joined_where_all_are_text() {
        let texts =
            json!([{"type": "input_text", "text": "a "}, {"type": "output_text", "text": "b"}]);
        assert_eq!(joined(&texts), "a b");
        let image =
            json!([{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "u"}]);
        assert_eq!(joined(&image), image);
        assert_eq!(text_in(&image), "a");
        assert_eq!(text_in(&json!("x")), "x");
        assert_eq!(text_in(&Value::Null), "");
    }
}
