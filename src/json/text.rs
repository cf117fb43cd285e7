//! [`quote`] and [`unquote`]: between a string and its JSON text.

use std::borrow::Cow;

/// The JSON text of a string: only quotes, backslashes and control characters are escaped.
pub fn quote(string: &str) -> String {
    serde_json::Value::from(string).to_string()
}

/// The string that a JSON text stands for; `None` if the text is not one well-formed string.
pub fn unquote(text: &str) -> Option<Cow<'_, str>> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    if inner
        .bytes()
        .any(|byte| matches!(byte, b'\\' | b'"' | 0..0x20))
    {
        return serde_json::from_str(text).ok().map(Cow::Owned);
    }
    Some(Cow::Borrowed(inner))
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
}
