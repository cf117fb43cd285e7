//! Values as they are typed on a command line: JSON, YAML scalars, and Hydra's `{a:1,b:[x,y]}`.
//!
//! Hydra wants no space after a colon, where YAML would read `{a:1}` as a key without a value. So no YAML parser serves
//! for collections: they are read here, and only their scalars by YAML's rules.

use std::iter::Peekable;
use std::str::CharIndices;

use serde_json::{Map, Value};

/// Deeper collections than this are refused rather than read recursively.
const MAX_DEPTH: usize = 64;

/// Reads a value of any kind. A text that is no number, truth value, `null` or collection is a string.
pub(crate) fn value(text: &str) -> Result<Value, String> {
    let text = text.trim();
    if let Ok(value) = serde_json::from_str(text) {
        return Ok(value);
    }
    let mut flow = Flow {
        text,
        chars: text.char_indices().peekable(),
    };
    match text.chars().next() {
        Some('{' | '[' | '\'' | '"') => {
            let value = flow.item(MAX_DEPTH, &[])?;
            flow.spaces();
            match flow.chars.next() {
                None => Ok(value),
                Some((at, _)) => Err(format!("nothing is expected at character {}", at + 1)),
            }
        }
        _ => Ok(scalar(text)),
    }
}

/// Reads a text: quotes are taken off, `null` is none, everything else stays as it is.
pub(crate) fn text(text: &str) -> Result<Value, String> {
    match text.trim() {
        "null" => Ok(Value::Null),
        quoted if quoted.starts_with(['\'', '"']) => value(quoted),
        plain => Ok(Value::String(plain.to_owned())),
    }
}

/// A plain scalar by the rules of YAML 1.2; what YAML does not take for a number or such is a string.
fn scalar(text: &str) -> Value {
    let plausible = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '~');
    if !text.starts_with(plausible) || text.contains('#') {
        return Value::String(text.to_owned());
    }
    match serde_yaml_ng::from_str(text).unwrap_or_default() {
        serde_yaml_ng::Value::Null if matches!(text, "null" | "Null" | "NULL" | "~") => Value::Null,
        serde_yaml_ng::Value::Bool(truth) => Value::Bool(truth),
        serde_yaml_ng::Value::Number(number) if number.is_finite() => {
            serde_json::to_value(number).unwrap_or_else(|_| Value::String(text.to_owned()))
        }
        _ => Value::String(text.to_owned()),
    }
}

struct Flow<'a> {
    text: &'a str,
    chars: Peekable<CharIndices<'a>>,
}

impl Flow<'_> {
    fn item(&mut self, depth: usize, ends: &[char]) -> Result<Value, String> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(format!("collections are nested deeper than {MAX_DEPTH}"));
        };
        self.spaces();
        match self.peek() {
            Some('{') => self.mapping(depth),
            Some('[') => self.list(depth),
            Some(quote @ ('\'' | '"')) => self.quoted(quote).map(Value::String),
            _ => self.plain(ends).map(|text| scalar(&text)),
        }
    }

    fn mapping(&mut self, depth: usize) -> Result<Value, String> {
        self.chars.next();
        let mut map = Map::new();
        loop {
            self.spaces();
            if self.take('}') {
                return Ok(Value::Object(map));
            }
            let key = match self.peek() {
                Some(quote @ ('\'' | '"')) => self.quoted(quote)?,
                _ => self.plain(&[':', ',', '}'])?,
            };
            self.spaces();
            if !self.take(':') {
                return Err(self.expected("`:` and a value"));
            }
            let value = self.item(depth, &[',', '}'])?;
            if map.insert(key.clone(), value).is_some() {
                return Err(format!("the key `{key}` is given twice"));
            }
            self.spaces();
            if !self.take(',') && self.peek() != Some('}') {
                return Err(self.expected("`,` or `}`"));
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Value, String> {
        self.chars.next();
        let mut list = Vec::new();
        loop {
            self.spaces();
            if self.take(']') {
                return Ok(Value::Array(list));
            }
            list.push(self.item(depth, &[',', ']'])?);
            self.spaces();
            if !self.take(',') && self.peek() != Some(']') {
                return Err(self.expected("`,` or `]`"));
            }
        }
    }

    /// A quoted string. `\` before the quote or another `\` escapes it, and doubled single quotes are one.
    fn quoted(&mut self, quote: char) -> Result<String, String> {
        let start = self.chars.next().map_or(0, |(at, _)| at);
        let mut text = String::new();
        while let Some((_, c)) = self.chars.next() {
            match (c, self.peek()) {
                ('\\', Some(next)) if next == quote || next == '\\' => {
                    text.push(next);
                    self.chars.next();
                }
                ('\'', Some('\'')) if quote == '\'' => {
                    text.push('\'');
                    self.chars.next();
                }
                _ if c == quote => return Ok(text),
                _ => text.push(c),
            }
        }
        Err(format!(
            "the quote at character {} is not closed",
            start + 1
        ))
    }

    /// Text up to one of `ends`, without the spaces around it; `${...}` is kept whole.
    fn plain(&mut self, ends: &[char]) -> Result<String, String> {
        let mut text = String::new();
        let mut open = 0_usize;
        while let Some((_, c)) = self.chars.peek().copied() {
            if open == 0 && ends.contains(&c) {
                break;
            }
            self.chars.next();
            match c {
                '{' if open > 0 || text.ends_with('$') => open += 1,
                '}' => open = open.saturating_sub(1),
                '\\' if self.peek().is_some_and(|next| ",:[]{}()=\\".contains(next)) => {
                    text.extend(self.chars.next().map(|(_, next)| next));
                    continue;
                }
                _ => {}
            }
            text.push(c);
        }
        let text = text.trim();
        if text.is_empty() {
            return Err(self.expected("a value"));
        }
        Ok(text.to_owned())
    }

    fn spaces(&mut self) {
        while self.chars.next_if(|(_, c)| c.is_whitespace()).is_some() {}
    }

    fn peek(&mut self) -> Option<char> {
        self.chars.peek().map(|(_, c)| *c)
    }

    fn take(&mut self, wanted: char) -> bool {
        self.chars.next_if(|(_, c)| *c == wanted).is_some()
    }

    fn expected(&mut self, what: &str) -> String {
        match self.chars.peek() {
            Some((at, _)) => format!("expected {what} at character {}", at + 1),
            None => format!(
                "expected {what} at the end, after {} characters",
                self.text.len()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn scalars_follow_yaml() {
        for (text, expected) in [
            ("4", json!(4)),
            ("-0.6", json!(-0.6)),
            ("1.0", json!(1.0)),
            ("1e3", json!(1000.0)),
            ("true", json!(true)),
            ("True", json!(true)),
            ("yes", json!("yes")),
            ("null", json!(null)),
            ("~", json!(null)),
            ("", json!("")),
            (" low ", json!("low")),
            ("a: b", json!("a: b")),
            ("@x", json!("@x")),
            ("7 # seven", json!("7 # seven")),
            (".inf", json!(".inf")),
            ("${temperature}", json!("${temperature}")),
            ("'4'", json!("4")),
            ("\"a\\\"b\"", json!("a\"b")),
            (r"'it\'s'", json!("it's")),
            ("'it''s'", json!("it's")),
        ] {
            assert_eq!(value(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn collections_are_read_with_and_without_spaces() {
        for (text, expected) in [
            ("{a:1,_default: 32}", json!({"a": 1, "_default": 32})),
            (
                "{ a : [ x , 'y, z', 2 ] , b : { } }",
                json!({"a": ["x", "y, z", 2], "b": {}}),
            ),
            ("[http://h:1, b c]", json!(["http://h:1", "b c"])),
            ("{u:http://h:1/x}", json!({"u": "http://h:1/x"})),
            (
                "{\"a\": {\"b\": \"{\\\"c\\\": 1}\"}}",
                json!({"a": {"b": "{\"c\": 1}"}}),
            ),
            ("{a: ${b}, c: null}", json!({"a": "${b}", "c": null})),
            (r"[a\,b,]", json!(["a,b"])),
        ] {
            assert_eq!(value(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn broken_collections_say_where() {
        for (text, expected) in [
            ("{a:1", "expected `,` or `}` at the end"),
            ("{a}", "expected `:` and a value at character 3"),
            ("{a:}", "expected a value at character 4"),
            ("[1,,2]", "expected a value at character 4"),
            ("[1] 2", "nothing is expected at character 5"),
            ("'open", "the quote at character 1 is not closed"),
            ("{a:1,a:2}", "the key `a` is given twice"),
        ] {
            let message = value(text).unwrap_err();
            assert!(message.contains(expected), "{text}: {message}");
        }
        let deep = "[".repeat(100_000);
        assert!(value(&deep).unwrap_err().contains("nested deeper"));
    }

    #[test]
    fn a_text_is_not_taken_for_a_number() {
        assert_eq!(text("007"), Ok(json!("007")));
        assert_eq!(text("true"), Ok(json!("true")));
        assert_eq!(text("'null'"), Ok(json!("null")));
        assert_eq!(text("null"), Ok(json!(null)));
        assert_eq!(text(" a b "), Ok(json!("a b")));
    }
}
