//! JSON objects written field by field: [`JsonObject`].

use indexmap::IndexMap;

use crate::json::{Object, quote};

/// A JSON object under construction.
#[derive(Debug, Default)]
pub(super) struct JsonObject(String);

/// Returns a float as JSON text: `null` unless it is finite.
pub(super) fn number(value: f64) -> String {
    serde_json::Value::from(value).to_string()
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
    fn from(mut object: String) -> Self {
        object.pop();
        Self(match object.as_str() {
            "{" => String::new(),
            _ => object,
        })
    }
}

impl JsonObject {
    /// Adds a field whose value is JSON text.
    pub(super) fn raw(&mut self, name: &str, value: &str) {
        self.0.push(if self.0.is_empty() { '{' } else { ',' });
        self.0.push_str(&quote(name));
        self.0.push(':');
        self.0.push_str(value);
    }

    /// Adds an integer.
    pub(super) fn integer(&mut self, name: &str, value: i64) {
        self.raw(name, &value.to_string());
    }

    /// Adds a float: `null` if it is infinite, no field if it is NaN.
    pub(super) fn float(&mut self, name: &str, value: f64) {
        if !value.is_nan() {
            self.raw(name, &number(value));
        }
    }

    /// Adds the fields of an object that is JSON text without spaces around it.
    pub(super) fn append(&mut self, object: &str) {
        let fields = object
            .strip_prefix('{')
            .and_then(|rest| rest.strip_suffix('}'));
        if let Some(fields) = fields.filter(|fields| !fields.is_empty()) {
            self.0.push(if self.0.is_empty() { '{' } else { ',' });
            self.0.push_str(fields);
        }
    }

    /// Returns the object's text with more fields. A field replaces the one of the same name, or is appended.
    pub(super) fn merged(self, fields: &IndexMap<String, String>) -> String {
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

    /// Returns the object's text.
    pub(super) fn finish(self) -> String {
        if self.0.is_empty() {
            return "{}".to_owned();
        }
        self.0 + "}"
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
    fn fields_of_another_object_are_taken_over() {
        let mut object = JsonObject::default();
        object.append("{}");
        object.append(r#"{"a":{}}"#);
        object.append(r#"{"b":1,"c":2}"#);
        assert_eq!(object.finish(), r#"{"a":{},"b":1,"c":2}"#);
    }
}
