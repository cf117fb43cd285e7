//! Filling a [`Template`] from the fields of a task.

use super::float::format_float;
use super::number::format_whole;
use super::spec::{Align, Spec};
use super::syntax::{Conversion, Field, Part, SpecText, Step, Template};
use super::value::{MAX_DEPTH, Value};
use crate::json::{Object, python_list, python_string};

/// Why a template could not be filled from a task.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FillError {
    /// The task, or an object in it, lacks a key; the key, and the task's fields, as Python prints them.
    #[error("Prompt template references field {key} but the data row only has fields: {fields}")]
    MissingField {
        /// The key that is not there.
        key: String,
        /// The names of the task's fields in order.
        fields: String,
    },
    /// A field's value does not go with what the template does to it.
    #[error("{0}")]
    Format(String),
}

impl Template {
    /// The text with all its fields filled from `task`.
    pub fn fill(&self, task: &Object<'_>) -> Result<String, FillError> {
        let mut filled = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => filled.push_str(text),
                Part::Field(field) => filled.push_str(&field.fill(task)?),
            }
        }
        Ok(filled)
    }
}

impl Field {
    fn fill(&self, task: &Object<'_>) -> Result<String, FillError> {
        let missing = |key: String| FillError::MissingField {
            key,
            fields: python_list(task.names()),
        };
        let text = task
            .get(&self.name)
            .ok_or_else(|| missing(python_string(&self.name)))?;
        let mut value = Value::parse(text).ok_or_else(|| {
            let name = python_string(&self.name);
            FillError::Format(format!(
                "field {name} nests deeper than {MAX_DEPTH} levels and cannot be printed"
            ))
        })?;
        for step in &self.path {
            value = descend(value, step, &missing)?;
        }
        let value = match self.conversion {
            None => value,
            Some(Conversion::Repr) => Value::Str(value.repr()),
            Some(Conversion::Str) => Value::Str(value.text()),
            Some(Conversion::Ascii) => Value::Str(value.ascii()),
        };
        match &self.spec {
            SpecText::Plain(spec) => formatted(&value, spec),
            SpecText::Filled(template) => formatted(&value, &template.fill(task)?),
        }
    }
}

fn descend(
    value: Value,
    step: &Step,
    missing: &impl Fn(String) -> FillError,
) -> Result<Value, FillError> {
    let type_name = value.type_name();
    let refused = |message: String| Err(FillError::Format(message));
    match (step, value) {
        (Step::Attribute(name), _) => {
            refused(format!("'{type_name}' object has no attribute '{name}'"))
        }
        (Step::Key(key), Value::Dict(fields)) => {
            let field = fields.into_iter().find(|(name, _)| name == key);
            field
                .map(|(_, value)| value)
                .ok_or_else(|| missing(python_string(key)))
        }
        // All keys of JSON objects are strings.
        (Step::Index(index), Value::Dict(_)) => Err(missing(index.to_string())),
        (Step::Index(index), Value::List(items)) => match items.into_iter().nth(*index) {
            Some(item) => Ok(item),
            None => refused("list index out of range".to_owned()),
        },
        (Step::Index(index), Value::Str(text)) => match text.chars().nth(*index) {
            Some(character) => Ok(Value::Str(character.into())),
            None => refused("string index out of range".to_owned()),
        },
        (Step::Key(_), Value::List(_)) => {
            refused("list indices must be integers or slices, not str".to_owned())
        }
        (Step::Key(_), Value::Str(_)) => {
            refused("string indices must be integers, not 'str'".to_owned())
        }
        (_, _) => refused(format!("'{type_name}' object is not subscriptable")),
    }
}

fn formatted(value: &Value, spec: &str) -> Result<String, FillError> {
    if spec.is_empty() {
        return Ok(value.text());
    }
    match value {
        Value::Str(text) => Spec::format_string(text, spec),
        Value::Int(whole) => format_whole(*whole, spec, "int"),
        Value::Bool(truth) => format_whole(i128::from(*truth), spec, "bool"),
        Value::Float(float) => {
            let spec = Spec::parse(spec, Align::Right, "float")?;
            format_float(*float, &spec, "float")
        }
        Value::None | Value::List(_) | Value::Dict(_) => {
            let type_name = value.type_name();
            let message = format!("unsupported format string passed to {type_name}.__format__");
            Err(FillError::Format(message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: &str = r#"{"s":"héllo","i":-1234567,"f":1234.5678,"z":-0.0,"t":true,"n":null,"l":[1,"two"],
        "d":{"k":{"q":"it's"},"0":1},"w":9}"#;

    fn filled(template: &str) -> Result<String, String> {
        let task = Object::parse(TASK).unwrap();
        Template::parse(template)
            .unwrap()
            .fill(&task)
            .map_err(|error| error.to_string())
    }

    /// Expected texts are what CPython 3.13 gives.
    #[test]
    fn fields_are_formatted_as_python_does() {
        for (template, expected) in [
            (
                "{s}|{i}|{f}|{t}|{n}|{l}",
                "héllo|-1234567|1234.5678|True|None|[1, 'two']",
            ),
            ("{d}", "{'k': {'q': \"it's\"}, '0': 1}"),
            ("{d[k][q]} {l[1]} {s[1]}", "it's two é"),
            ("{s!r:>10}|{s!a}|{f!s:.3}", "   'héllo'|'h\\xe9llo'|123"),
            (
                "{s:>8}|{s:*^9}|{s:.2}|{s:08}",
                "   héllo|**héllo**|hé|héllo000",
            ),
            (
                "{i:,}|{i:_x}|{i:+012}|{i:#b}|{w:c}",
                "-1,234,567|-12_d687|-00001234567|-0b100101101011010000111|\t",
            ),
            (
                "{f:.2f}|{f:e}|{f:.3g}|{f:.1%}|{f:,.1f}|{f:012.1f}",
                "1234.57|1.234568e+03|1.23e+03|123456.8%|1,234.6|0000001234.6",
            ),
            (
                "{f:.6}|{w:.2f}|{t:d}|{w:03}|{s:>{w}}|{z:z.1f}",
                "1234.57|9.00|1|009|    héllo|0.0",
            ),
        ] {
            assert_eq!(filled(template).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn missing_fields_name_the_fields_there_are() {
        let fields = "['s', 'i', 'f', 'z', 't', 'n', 'l', 'd', 'w']";
        for (template, key) in [
            ("{hint}", "'hint'"),
            ("{d[x]}", "'x'"),
            ("{d[0]}", "0"),
            ("{ s}", "' s'"),
        ] {
            let expected = format!(
                "Prompt template references field {key} but the data row only has fields: {fields}"
            );
            assert_eq!(filled(template), Err(expected));
        }
    }

    #[test]
    fn what_does_not_fit_a_value_is_an_error() {
        for template in [
            "{s.upper}",
            "{l[9]}",
            "{l[x]}",
            "{s[9]}",
            "{i[0]}",
            "{n:>5}",
            "{l:5}",
            "{d:s}",
            "{s:d}",
            "{s:+}",
            "{s:=9}",
            "{s:,}",
            "{s:#}",
            "{i:.2}",
            "{i:s}",
            "{f:d}",
            "{f:x}",
            "{i:,x}",
            "{i:c}",
            "{f:.}",
            "{f:.2ff}",
            "{i:,_}",
            "{s:99999999}",
        ] {
            assert!(filled(template).is_err(), "{template}");
        }
    }
}
