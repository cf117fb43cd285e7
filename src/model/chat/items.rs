//! [`Item`]: a Responses item and its place, as errors name it.

use serde_json::{Map, Value};

use super::ConversionError;

#[derive(Clone, Copy)]
pub(super) struct Item<'a> {
    pub index: usize,
    pub kind: &'a str,
    pub fields: &'a Map<String, Value>,
}

impl<'a> Item<'a> {
    pub fn new(index: usize, value: &'a Value) -> Result<Self, ConversionError> {
        let malformed = |problem: &str| ConversionError::MalformedItem {
            index,
            kind: "?".to_owned(),
            problem: problem.to_owned(),
        };
        let fields = value
            .as_object()
            .ok_or_else(|| malformed("is not an object"))?;
        // Responses lets messages leave out their type.
        let kind = match fields.get("type").and_then(Value::as_str) {
            Some(kind) if !kind.is_empty() => kind,
            _ if fields.contains_key("role") => "message",
            _ => return Err(malformed("has neither `type` nor `role`")),
        };
        Ok(Self {
            index,
            kind,
            fields,
        })
    }

    /// The text of a field that has to be there.
    pub fn text(&self, name: &str) -> Result<&'a str, ConversionError> {
        match self.fields.get(name) {
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(self.malformed(format!("has a `{name}` that is not a text"))),
            None => Err(self.malformed(format!("has no `{name}`"))),
        }
    }

    pub fn malformed(&self, problem: impl Into<String>) -> ConversionError {
        ConversionError::MalformedItem {
            index: self.index,
            kind: self.kind.to_owned(),
            problem: problem.into(),
        }
    }

    pub fn part(&self, part: usize, what: impl Into<String>) -> ConversionError {
        ConversionError::Part {
            index: self.index,
            kind: self.kind.to_owned(),
            part,
            what: what.into(),
        }
    }
}

/// A field that is there and not null.
pub(super) fn given<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null())
}
