//! The expected values of a sample.

use serde_json::Value;

use super::CheckError;

pub(super) const DEFAULT_FIELD: &str = "expected_answer";

pub(super) fn default_field() -> String {
    DEFAULT_FIELD.to_owned()
}

/// A field of the sample's metadata that is there and not null.
pub(super) fn field<'a>(metadata: &'a Value, name: &str) -> Result<&'a Value, CheckError> {
    metadata
        .get(name)
        .filter(|value| !value.is_null())
        .ok_or_else(|| CheckError::Missing {
            field: name.to_owned(),
        })
}

/// The texts of which one is expected: a list has several, numbers and booleans are as JSON spells them.
pub(super) fn texts(metadata: &Value, name: &str) -> Result<Vec<String>, CheckError> {
    let value = field(metadata, name)?;
    let list = match value {
        Value::Array(list) if list.is_empty() => {
            return Err(unusable(name, "is an empty list"));
        }
        Value::Array(list) => list.as_slice(),
        _ => std::slice::from_ref(value),
    };
    list.iter()
        .map(|value| match value {
            Value::String(text) => Ok(text.clone()),
            Value::Number(_) | Value::Bool(_) => Ok(value.to_string()),
            _ => Err(unusable(
                name,
                "is neither a text nor a number, nor a list of those",
            )),
        })
        .collect()
}

pub(super) fn unusable(field: &str, problem: impl Into<String>) -> CheckError {
    CheckError::Unusable {
        field: field.to_owned(),
        problem: problem.into(),
    }
}
