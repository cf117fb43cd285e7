//! [`Value`]: a field of a task as Python sees it, and how Python prints it.

use serde_json::value::RawValue;

use crate::json::{Object, is_printable, python_float, python_string, unquote};

/// Values that nest deeper are not printed: printing recurses, as it does in Python.
pub(super) const MAX_DEPTH: usize = 200;

/// A JSON value with Python's types. Whole numbers beyond 64 bits are floats, as the reader of the rows has it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(String),
    List(Vec<Value>),
    Dict(Vec<(String, Value)>),
}

impl Value {
    /// Reads well-formed JSON text; `None` if it is not, or nests deeper than [`MAX_DEPTH`].
    pub fn parse(text: &str) -> Option<Self> {
        Self::parse_level(text, MAX_DEPTH)
    }

    fn parse_level(text: &str, levels: usize) -> Option<Self> {
        Some(match text.as_bytes().first()? {
            b'n' => Self::None,
            b't' => Self::Bool(true),
            b'f' => Self::Bool(false),
            b'"' => Self::Str(unquote(text)?.into_owned()),
            b'[' => Self::list(text, levels.checked_sub(1)?)?,
            b'{' => Self::dict(text, levels.checked_sub(1)?)?,
            _ => Self::number(text)?,
        })
    }

    fn list(text: &str, levels: usize) -> Option<Self> {
        let mut items = Vec::new();
        for item in serde_json::from_str::<Vec<&RawValue>>(text).ok()? {
            items.push(Self::parse_level(item.get(), levels)?);
        }
        Some(Self::List(items))
    }

    fn dict(text: &str, levels: usize) -> Option<Self> {
        let mut fields = Vec::new();
        for (name, _, value) in Object::parse(text).ok()?.iter() {
            fields.push((name.to_owned(), Self::parse_level(value, levels)?));
        }
        Some(Self::Dict(fields))
    }

    fn number(text: &str) -> Option<Self> {
        const SMALLEST: i128 = i64::MIN as i128;
        const LARGEST: i128 = u64::MAX as i128;
        match text.parse::<i128>() {
            Ok(whole) if (SMALLEST..=LARGEST).contains(&whole) => Some(Self::Int(whole)),
            _ => text.parse().ok().map(Self::Float),
        }
    }

    /// The name of its type in Python.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Str(_) => "str",
            Self::List(_) => "list",
            Self::Dict(_) => "dict",
        }
    }

    /// Python's `str()`.
    pub fn text(&self) -> String {
        match self {
            Self::Str(value) => value.clone(),
            _ => self.repr(),
        }
    }

    /// Python's `repr()`.
    pub fn repr(&self) -> String {
        let mut text = String::new();
        self.push_repr(&mut text);
        text
    }

    /// Python's `ascii()`.
    pub fn ascii(&self) -> String {
        let mut text = String::new();
        for character in self.repr().chars() {
            if character.is_ascii() {
                text.push(character);
            } else if is_printable(character) {
                text.push_str(&escaped(character));
            }
        }
        text
    }

    fn push_repr(&self, text: &mut String) {
        match self {
            Self::None => text.push_str("None"),
            Self::Bool(true) => text.push_str("True"),
            Self::Bool(false) => text.push_str("False"),
            Self::Int(value) => text.push_str(&value.to_string()),
            Self::Float(value) => text.push_str(&python_float(*value)),
            Self::Str(value) => text.push_str(&python_string(value)),
            Self::List(items) => {
                text.push('[');
                for (position, item) in items.iter().enumerate() {
                    if position > 0 {
                        text.push_str(", ");
                    }
                    item.push_repr(text);
                }
                text.push(']');
            }
            Self::Dict(fields) => {
                text.push('{');
                for (position, (name, value)) in fields.iter().enumerate() {
                    if position > 0 {
                        text.push_str(", ");
                    }
                    text.push_str(&python_string(name));
                    text.push_str(": ");
                    value.push_repr(text);
                }
                text.push('}');
            }
        }
    }
}

/// Whether Python takes a JSON value for true, by its well-formed text.
pub(in crate::read) fn is_truthy(text: &str) -> bool {
    let inner = text
        .get(1..text.len().saturating_sub(1))
        .unwrap_or_default();
    match text.as_bytes().first() {
        None | Some(b'n' | b'f') => false,
        Some(b't') => true,
        Some(b'"') => !inner.is_empty(),
        Some(b'[' | b'{') => !inner.trim_ascii().is_empty(),
        Some(_) => text.parse::<f64>().is_ok_and(|number| number != 0.0),
    }
}

/// `repr` has escaped all that cannot be printed, so this one sees printable characters only.
fn escaped(character: char) -> String {
    match u32::from(character) {
        code @ 0..=0xff => format!("\\x{code:02x}"),
        code @ 0x100..=0xffff => format!("\\u{code:04x}"),
        code => format!("\\U{code:08x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(json: &str) -> String {
        Value::parse(json).unwrap().text()
    }

    #[test]
    fn values_print_like_pythons() {
        for (json, expected) in [
            ("3", "3"),
            ("-0", "0"),
            ("-0.0", "-0.0"),
            ("2.0", "2.0"),
            ("1e16", "1e+16"),
            ("18446744073709551615", "18446744073709551615"),
            ("18446744073709551616", "1.8446744073709552e+19"),
            ("true", "True"),
            ("null", "None"),
            (r#""it's""#, "it's"),
            (r#"[1,"two",null,1.5]"#, "[1, 'two', None, 1.5]"),
            (r#"{"k":"it's","t":[],"k":{}}"#, "{'k': {}, 't': []}"),
            (r#"[ "a\nb" , "it's" ]"#, r#"['a\nb', "it's"]"#),
        ] {
            assert_eq!(text(json), expected);
        }
        assert_eq!(
            Value::parse("\"é日🙂\\n\"").unwrap().ascii(),
            r"'\xe9\u65e5\U0001f642\n'"
        );
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(text(&nested(MAX_DEPTH)), nested(MAX_DEPTH));
        assert_eq!(Value::parse(&nested(MAX_DEPTH + 1)), None);
    }

    #[test]
    fn emptiness_and_zero_are_false() {
        for json in [
            "0", "-0.0", "1e-400", "0e5", "\"\"", "[]", "{ }", "[ ]", "null", "false",
        ] {
            assert!(!is_truthy(json), "{json}");
        }
        for json in [
            "[0]",
            "\" \"",
            "0.1",
            "-1",
            "true",
            "{\"\":0}",
            "18446744073709551616",
        ] {
            assert!(is_truthy(json), "{json}");
        }
    }
}
