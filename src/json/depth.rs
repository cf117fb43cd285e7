use memchr::memchr2;
use serde::Deserialize;
use serde_json::Value;

use super::MAX_DEPTH;

/// Whether arrays and objects nest deeper than [`MAX_DEPTH`]: readers that call themselves for each level, as most do,
/// would overflow their stack. `text` is JSON; of anything else the answer means nothing.
pub fn is_too_deep(text: &str) -> bool {
    let mut rest = text.as_bytes();
    if rest.len() <= MAX_DEPTH {
        return false;
    }
    let mut depth = 0_usize;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'[' | b'{' if depth == MAX_DEPTH => return true,
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => rest = after_string(rest),
            _ => {}
        }
    }
    false
}

/// A text as a value, however deep it nests up to [`MAX_DEPTH`]; `None` if it is no JSON, or deeper.
pub fn value(text: &str) -> Option<Value> {
    if is_too_deep(text) {
        return None;
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    reader.disable_recursion_limit();
    let value = Value::deserialize(&mut reader).ok()?;
    reader.end().ok().map(|()| value)
}

/// What follows a string whose first quote has been read.
fn after_string(mut rest: &[u8]) -> &[u8] {
    while let Some(at) = memchr2(b'"', b'\\', rest) {
        let is_escape = rest.get(at) == Some(&b'\\');
        rest = rest
            .get(at + 1 + usize::from(is_escape)..)
            .unwrap_or_default();
        if !is_escape {
            return rest;
        }
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_and_objects_count_wherever_they_stand() {
        let nested = |open: &str, close: &str, depth| {
            format!(
                r#"{{"a":{}1{},"b":1}}"#,
                open.repeat(depth),
                close.repeat(depth)
            )
        };
        for (open, close) in [("[", "]"), (r#"{"x":"#, "}"), ("[ ", " ]")] {
            assert!(!is_too_deep(&nested(open, close, MAX_DEPTH - 1)), "{open}");
            assert!(is_too_deep(&nested(open, close, MAX_DEPTH)), "{open}");
        }
    }

    #[test]
    fn what_is_closed_or_in_a_string_does_not_count() {
        let many = MAX_DEPTH * 3;
        assert!(!is_too_deep(&format!("[{}1]", "[],{},".repeat(many))));
        for text in ["[", r#"\"["#, r"\\", r#"[\\\""#] {
            let string = format!(r#"["{}"]"#, text.repeat(many));
            assert!(!is_too_deep(&string), "{text}");
        }
        let after = format!(r#"{{"a":"\\","b":{}"#, "[".repeat(MAX_DEPTH));
        assert!(is_too_deep(&after));
    }
}
