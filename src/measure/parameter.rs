//! Settings of a metric query: [`Parameter`] and its [`ParameterValue`].

use std::fmt;

use datafusion::common::ScalarValue;

/// A setting that a query takes, used in its text as `$name`.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// Its name, without the dollar.
    pub name: String,
    /// What it is where nobody sets it.
    pub default: ParameterValue,
    /// What it is for.
    pub description: String,
}

/// A value of a parameter, as SQL would write it.
#[derive(Debug, Clone, PartialEq)]
pub enum ParameterValue {
    /// `true` or `false`.
    Boolean(bool),
    /// `3`.
    Integer(i64),
    /// `0.95`.
    Float(f64),
    /// `'text'`.
    Text(String),
}

impl ParameterValue {
    /// Reads a literal.
    pub fn parse(literal: &str) -> Option<Self> {
        if let Some(text) = literal.strip_prefix('\'') {
            let text = text.strip_suffix('\'')?;
            return Some(Self::Text(text.replace("''", "'")));
        }
        let boolean = literal.parse().map(Self::Boolean).ok();
        boolean
            .or_else(|| literal.parse().map(Self::Integer).ok())
            .or_else(|| literal.parse().map(Self::Float).ok())
    }

    /// What a text says as a value of the same type: text may do without quotes.
    pub fn same_type(&self, text: &str) -> Option<Self> {
        match (self, Self::parse(text)) {
            (Self::Text(_), Some(value @ Self::Text(_))) => Some(value),
            (Self::Text(_), _) => Some(Self::Text(text.to_owned())),
            (Self::Boolean(_), Some(value @ Self::Boolean(_)))
            | (Self::Integer(_), Some(value @ Self::Integer(_)))
            | (Self::Float(_), Some(value @ Self::Float(_))) => Some(value),
            (Self::Float(_), Some(Self::Integer(value))) => Some(Self::Float(value as f64)),
            _ => None,
        }
    }
}

impl From<bool> for ParameterValue {
    fn from(value: bool) -> Self {
        Self::Boolean(value)
    }
}

impl From<i64> for ParameterValue {
    fn from(value: i64) -> Self {
        Self::Integer(value)
    }
}

impl From<&str> for ParameterValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl fmt::Display for ParameterValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean(value) => write!(f, "{value}"),
            Self::Integer(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value:?}"),
            Self::Text(value) => write!(f, "'{}'", value.replace('\'', "''")),
        }
    }
}

impl From<&ParameterValue> for ScalarValue {
    fn from(value: &ParameterValue) -> Self {
        match value {
            ParameterValue::Boolean(value) => Self::Boolean(Some(*value)),
            ParameterValue::Integer(value) => Self::Int64(Some(*value)),
            ParameterValue::Float(value) => Self::Float64(Some(*value)),
            ParameterValue::Text(value) => Self::Utf8(Some(value.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_literal_is_read_as_it_is_written() {
        for literal in ["true", "-3", "0.95", "'it''s'", "''"] {
            let value = ParameterValue::parse(literal).unwrap();
            assert_eq!(value.to_string(), literal);
        }
        for literal in ["yes", "'open", ""] {
            assert_eq!(ParameterValue::parse(literal), None, "{literal}");
        }
    }
}
