//! JSON as text that is looked at once and kept as it is.
//!
//! [`validate`] checks that a text is one well-formed value. [`Object`] reads one level of an object: its values stay
//! slices of the text, so numbers, key order and spelling below that level do not change on the way through. [`Path`]
//! leads to a value below it, [`splice`] sets fields in a text that otherwise stays as it is. [`SyntaxError`] says where
//! and why a text is malformed. Everything that reads rows, answers and files of NeMo Gym uses them.
//!
//! The scanner is ours because what it accepts is what orjson accepts, byte for byte: serde_json's `RawValue` skips lone
//! surrogates, numbers beyond a float and any depth without a check, and its errors give bytes instead of characters.
//! Faster crates (simd-json, sonic-rs) change the text in place or rest on unsafe code.

mod error;
mod object;
mod scan;

use std::borrow::Cow;

use memchr::memchr2;
use serde::Deserialize;
use serde_json::Value;

pub use error::{ObjectError, PathError, Problem, SyntaxError};
pub use object::{Object, Path, splice};
pub use scan::{MAX_DEPTH, validate};

/// Returns the JSON text of a string: only quotes, backslashes and control characters are escaped.
pub fn quote(string: &str) -> String {
    let mut text = String::with_capacity(string.len() + 2);
    write_quoted(string, &mut text);
    text
}

/// Appends the JSON text of a string.
pub fn write_quoted(string: &str, out: &mut String) {
    if string.bytes().any(is_escaped) {
        out.push_str(&serde_json::Value::from(string).to_string());
    } else {
        out.extend(["\"", string, "\""]);
    }
}

/// Whether a byte of a string is escaped in its JSON text.
fn is_escaped(byte: u8) -> bool {
    matches!(byte, b'\\' | b'"' | 0..0x20)
}

/// Returns the string that a JSON text stands for; `None` if the text is not one well-formed string.
pub fn unquote(text: &str) -> Option<Cow<'_, str>> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    if inner.bytes().any(is_escaped) {
        return serde_json::from_str(text).ok().map(Cow::Owned);
    }
    Some(Cow::Borrowed(inner))
}

/// Whether arrays and objects nest deeper than [`MAX_DEPTH`], so that a recursive reader would overflow its stack.
/// `text` must be JSON.
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

/// Parses a text that nests up to [`MAX_DEPTH`] levels; `None` if it is not JSON, or deeper.
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
    fn quoting_escapes_only_what_it_must() {
        assert_eq!(quote("é/\u{7f}\u{2028}"), "\"é/\u{7f}\u{2028}\"");
        assert_eq!(quote("a\"\\\n\u{1}"), r#""a\"\\\n\u0001""#);
    }

    #[test]
    fn unquoting_takes_well_formed_strings_only() {
        assert!(matches!(unquote("\"é\""), Some(Cow::Borrowed("é"))));
        assert_eq!(unquote(r#""\ud83d\ude00""#).as_deref(), Some("😀"));
        for text in [
            "",
            "\"",
            "a",
            "\"a\"b\"",
            "\"\n\"",
            r#""\ud800""#,
            "1",
            "null",
        ] {
            assert_eq!(unquote(text), None, "{text}");
        }
    }

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
