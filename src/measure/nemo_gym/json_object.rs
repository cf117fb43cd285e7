//! JSON objects written field by field: [`JsonObject`].

use std::fmt::{Display, Write};

use indexmap::IndexMap;
use serde_json::Number;

use crate::json::{Object, quote, write_quoted};

/// A JSON object under construction, which may stand behind other text.
#[derive(Debug, Default)]
pub(super) struct JsonObject {
    text: String,
    /// The place in the text at which the object begins.
    start: usize,
}

/// Returns a float as JSON text: `null` unless it is finite.
pub(super) fn number(value: f64) -> String {
    let mut text = String::new();
    write_number(value, &mut text);
    text
}

/// Appends a float as JSON text: `null` unless it is finite.
pub(super) fn write_number(value: f64, out: &mut String) {
    match Number::from_f64(value) {
        Some(number) => write(number, out),
        None => out.push_str("null"),
    }
}

/// Appends a value as it is displayed.
pub(super) fn write(value: impl Display, out: &mut String) {
    // Writing into a string does not fail.
    let _ = write!(out, "{value}");
}

/// Returns the wanted fields of an object, as JSON text by name.
pub(super) fn fields(
    object: &Object<'_>,
    is_wanted: impl Fn(&str, &str) -> bool,
) -> IndexMap<String, String> {
    let fields = object.iter().map(|(name, _, value)| (name, value));
    let fields = fields.filter(|(name, value)| is_wanted(name, value));
    fields
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

impl From<String> for JsonObject {
    /// Continues an object from its JSON text, which must have no spaces around it.
    fn from(mut text: String) -> Self {
        text.pop();
        if text == "{" {
            text.clear();
        }
        Self { text, start: 0 }
    }
}

impl JsonObject {
    /// Begins an object at the end of a text.
    pub(super) fn behind(text: String) -> Self {
        let start = text.len();
        Self { text, start }
    }

    fn separate(&mut self) {
        let is_first = self.text.len() == self.start;
        self.text.push(if is_first { '{' } else { ',' });
    }

    /// Begins a field. Its value must be appended to the returned text.
    pub(super) fn field(&mut self, name: &str) -> &mut String {
        self.separate();
        write_quoted(name, &mut self.text);
        self.text.push(':');
        &mut self.text
    }

    /// Begins a field whose name is JSON text.
    pub(super) fn quoted(&mut self, name: &str) -> &mut String {
        self.separate();
        self.text.extend([name, ":"]);
        &mut self.text
    }

    /// Adds a field whose value is JSON text.
    pub(super) fn raw(&mut self, name: &str, value: &str) {
        self.field(name).push_str(value);
    }

    /// Adds an integer.
    pub(super) fn integer(&mut self, name: &str, value: i64) {
        write(value, self.field(name));
    }

    /// Adds a float: `null` if it is infinite, no field if it is NaN.
    pub(super) fn float(&mut self, name: &str, value: f64) {
        if !value.is_nan() {
            write_number(value, self.field(name));
        }
    }

    /// Adds fields that are JSON text: those of an object without spaces or braces around them.
    pub(super) fn append(&mut self, fields: &str) {
        if !fields.is_empty() {
            self.separate();
            self.text.push_str(fields);
        }
    }

    /// Returns the object's text with more fields. A field replaces the one of the same name, or is appended.
    pub(super) fn merged(mut self, fields: &IndexMap<String, String>) -> String {
        // Most are new, and a search for their names is far cheaper than to parse the object.
        let is_new = |name: &String| !self.text.contains(&(quote(name) + ":"));
        if fields.keys().all(is_new) {
            fields
                .iter()
                .for_each(|(name, value)| self.raw(name, value));
            return self.finish();
        }
        let text = self.finish();
        let mut object = Object::parse(&text).unwrap_or_default();
        for (name, value) in fields {
            object.set(name, value);
        }
        object.to_string()
    }

    /// Returns the fields as JSON text, by name.
    pub(super) fn into_fields(self) -> IndexMap<String, String> {
        fields(
            &Object::parse(&self.finish()).unwrap_or_default(),
            |_, _| true,
        )
    }

    /// Returns the text with the object at its end.
    pub(super) fn finish(mut self) -> String {
        if self.text.len() == self.start {
            self.text.push('{');
        }
        self.text.push('}');
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinities_are_null_and_nan_is_nothing() {
        let mut object = JsonObject::default();
        object.float("a\"b", f64::INFINITY);
        object.float("c", f64::NAN);
        object.float("d", 1.0);
        object.integer("e", 1);
        assert_eq!(object.finish(), r#"{"a\"b":null,"d":1.0,"e":1}"#);
        assert_eq!(JsonObject::default().finish(), "{}");
    }

    #[test]
    fn a_field_replaces_the_one_of_its_name_or_is_appended() {
        let merged = |text: &str, name: &str| {
            let fields = IndexMap::from([
                (name.to_owned(), "[0]".to_owned()),
                ("new".into(), "1".into()),
            ]);
            JsonObject::from(text.to_owned()).merged(&fields)
        };
        let text = r#"{"a":1,"b":{"c":2}}"#;
        assert_eq!(merged(text, "a"), r#"{"a":[0],"b":{"c":2},"new":1}"#);
        assert_eq!(merged(text, "c"), r#"{"a":1,"b":{"c":2},"c":[0],"new":1}"#);
        assert_eq!(merged(text, "d"), r#"{"a":1,"b":{"c":2},"d":[0],"new":1}"#);
        assert_eq!(merged("{}", "a"), r#"{"a":[0],"new":1}"#);
    }

    #[test]
    fn fields_of_another_object_are_taken_over() {
        let mut object = JsonObject::default();
        object.append("");
        object.append(r#""a":{}"#);
        object.append(r#""b":1,"c":2"#);
        let object = JsonObject::behind(object.finish() + ",");
        assert_eq!(object.finish(), r#"{"a":{},"b":1,"c":2},{}"#);
    }
}
