//! [`Object`]: one level of a JSON object, in order, with its values as text.

use std::borrow::Cow;
use std::collections::HashMap;

use super::scan::Scanner;
use super::syntax_error::{Problem, SyntaxError};
use super::text::{quote, unquote};
use super::token::Spelling;

/// Objects with more fields find their duplicate keys by hash instead of one by one.
const SMALL: usize = 24;

/// A JSON object's fields in order. Values are JSON text, untouched; of a duplicate key the last value counts, at
/// the first one's position.
#[derive(Debug, Clone, Default)]
pub struct Object<'a> {
    fields: Vec<Field<'a>>,
}

#[derive(Debug, Clone)]
struct Field<'a> {
    /// With its quotes and escapes, as it is written again.
    quoted: Cow<'a, str>,
    name: Cow<'a, str>,
    value: Cow<'a, str>,
}

/// Why a text is not a JSON object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// It is not JSON.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// It is JSON, but another type; what it is.
    #[error("expected an object, got {0}")]
    NotAnObject(&'static str),
}

impl<'a> Object<'a> {
    /// Reads one level of `text`, checking all of it on the way.
    ///
    /// # Errors
    /// If the text is malformed at any depth, or is not an object.
    pub fn parse(text: &'a str) -> Result<Self, ObjectError> {
        let mut scanner = Scanner::new(text);
        scanner.begin()?;
        if scanner.peek() != Some(b'{') {
            let kind = kind(scanner.peek());
            scanner.value()?;
            scanner.end()?;
            return Err(ObjectError::NotAnObject(kind));
        }
        let mut fields = Fields::default();
        scanner.open(true)?;
        scanner.whitespace();
        if scanner.peek() == Some(b'}') {
            scanner.close();
        } else {
            loop {
                let (from, to, spelling) = scanner.key()?;
                scanner.whitespace();
                let start = scanner.at;
                scanner.value()?;
                let value = scanner.slice(start, scanner.at);
                fields.push(scanner.slice(from, to), spelling, value);
                scanner.whitespace();
                match scanner.peek() {
                    Some(b',') => scanner.take(b','),
                    Some(b'}') => break scanner.close(),
                    _ => return Err(scanner.error(Problem::ExpectedCommaOrBrace).into()),
                };
            }
        }
        scanner.end()?;
        Ok(Self {
            fields: fields.list,
        })
    }

    /// The value of `name` as JSON text.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|field| field.name == name)
            .map(|field| &*field.value)
    }

    /// Whether there is a field of that name, whatever its value.
    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Sets a field to a JSON text: in place if it exists, else at the end.
    pub fn set(&mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) {
        let (name, value) = (name.into(), value.into());
        match self.fields.iter_mut().find(|field| field.name == name) {
            Some(field) => field.value = value,
            None => self.fields.push(Field {
                quoted: Cow::Owned(quote(&name)),
                name,
                value,
            }),
        }
    }

    /// The names in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|field| &*field.name)
    }

    /// For each field in order: its name, its name as quoted JSON text, and its value as JSON text.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.fields
            .iter()
            .map(|field| (&*field.name, &*field.quoted, &*field.value))
    }

    /// Appends the object as JSON text, without spaces at this level.
    pub fn write(&self, out: &mut String) {
        self.write_without(&[], out);
    }

    /// Appends the object without the fields of the given names.
    pub fn write_without(&self, names: &[&str], out: &mut String) {
        let fields = || {
            self.fields
                .iter()
                .filter(|field| !names.contains(&&*field.name))
        };
        let length: usize = fields()
            .map(|field| field.quoted.len() + field.value.len() + 2)
            .sum();
        out.reserve(length + 2);
        out.push('{');
        for (position, field) in fields().enumerate() {
            if position > 0 {
                out.push(',');
            }
            out.push_str(&field.quoted);
            out.push(':');
            out.push_str(&field.value);
        }
        out.push('}');
    }
}

impl std::fmt::Display for Object<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = String::new();
        self.write(&mut text);
        f.write_str(&text)
    }
}

/// Fields as they are read, with what is needed to see a duplicate.
#[derive(Default)]
struct Fields<'a> {
    list: Vec<Field<'a>>,
    /// Kept only for objects that are not [`SMALL`].
    positions: HashMap<Cow<'a, str>, usize>,
}

impl<'a> Fields<'a> {
    fn push(&mut self, quoted: &'a str, spelling: Spelling, value: &'a str) {
        let plain = quoted.get(1..quoted.len() - 1).unwrap_or_default();
        let name = match spelling {
            Spelling::Plain => Cow::Borrowed(plain),
            Spelling::Escaped => unquote(quoted).unwrap_or(Cow::Borrowed(plain)),
        };
        let value = Cow::Borrowed(value);
        match self
            .position(&name)
            .and_then(|position| self.list.get_mut(position))
        {
            Some(field) => field.value = value,
            None => {
                if self.list.len() >= SMALL {
                    self.positions.insert(name.clone(), self.list.len());
                }
                self.list.push(Field {
                    quoted: Cow::Borrowed(quoted),
                    name,
                    value,
                });
            }
        }
    }

    fn position(&self, name: &str) -> Option<usize> {
        let first = self
            .list
            .iter()
            .take(SMALL)
            .position(|field| field.name == name);
        first.or_else(|| self.positions.get(name).copied())
    }
}

fn kind(first: Option<u8>) -> &'static str {
    match first {
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_spelling_and_order() {
        let text =
            r#" { "z" : 1.50 , "a":[1, 2],"\u00e9":-0,"n":123456789012345678901234567890 } "#;
        let object = Object::parse(text).unwrap();
        assert_eq!(object.get("z"), Some("1.50"));
        assert_eq!(object.get("é"), Some("-0"));
        assert_eq!(object.names().collect::<Vec<_>>(), ["z", "a", "é", "n"]);
        let expected = r#"{"z":1.50,"a":[1, 2],"\u00e9":-0,"n":123456789012345678901234567890}"#;
        assert_eq!(object.to_string(), expected);
        assert_eq!(Object::parse("{}").unwrap().to_string(), "{}");
    }

    #[test]
    fn of_duplicate_keys_the_last_value_counts_at_the_first_position() {
        let object = Object::parse(r#"{"a":1,"b":2,"\u0061":3}"#).unwrap();
        assert_eq!(object.to_string(), r#"{"a":3,"b":2}"#);

        let many: Vec<String> = (0..100).map(|n| format!("\"k{}\":{n}", n % 50)).collect();
        let text = format!("{{{}}}", many.join(","));
        let object = Object::parse(&text).unwrap();
        assert_eq!(object.names().count(), 50);
        assert_eq!(
            (object.get("k3"), object.get("k49")),
            (Some("53"), Some("99"))
        );
    }

    #[test]
    fn setting_is_in_place_or_at_the_end() {
        let mut object = Object::parse(r#"{"a":1,"b":2}"#).unwrap();
        object.set("a", "[]");
        object.set("q\"", String::from("null"));
        assert_eq!(object.to_string(), r#"{"a":[],"b":2,"q\"":null}"#);
        assert!(object.contains("q\""));
        let mut rest = String::new();
        object.write_without(&["a", "none"], &mut rest);
        assert_eq!(rest, r#"{"b":2,"q\"":null}"#);
    }

    #[test]
    fn malformed_text_and_other_types_are_told_apart() {
        assert_eq!(
            Object::parse("[1]").unwrap_err(),
            ObjectError::NotAnObject("an array")
        );
        assert_eq!(
            Object::parse("-1").unwrap_err(),
            ObjectError::NotAnObject("a number")
        );
        for text in [
            "[1",
            "{\"a\":1",
            "{\"a\":1,}",
            "{} x",
            "{\"a\":{\"b\":[NaN]}}",
            "{\"a\":1 \"b\":2}",
        ] {
            assert!(
                matches!(Object::parse(text), Err(ObjectError::Syntax(_))),
                "{text}"
            );
        }
    }

    #[test]
    fn the_object_itself_counts_as_a_level() {
        let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(Object::parse(&nested(1023)).is_ok());
        assert!(Object::parse(&nested(1024)).is_err());
    }
}
