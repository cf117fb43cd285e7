//! [`Value`]: a JSON value with Python's types, how Python prints it, and what it is equal to.

use serde_json::value::RawValue;

use super::repr::ascii;
use super::{repr_dict, repr_float, repr_str};
use crate::json::{Object, unquote};

/// [`Value::parse`] refuses values that nest deeper: printing recurses, as it does in Python.
pub const MAX_DEPTH: usize = 200;

/// A JSON value with Python's types. Whole numbers beyond 64 bits are floats, since orjson reads them so.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the variants are Python's types")]
pub enum Value {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(String),
    List(Vec<Value>),
    Dict(Vec<(String, Value)>),
}

/// A value that can be a key of a dict, equal to every other that Python finds equal: `1`, `1.0` and `true` are one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Key {
    /// None.
    None,
    /// A string.
    Str(String),
    /// An integer, a boolean, or a float without a fraction.
    Int(i128),
    /// The bits of a float that has a fraction, or is larger than every integer of an [`i128`].
    Float(u64),
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

    /// Python's `ascii()`.
    pub fn ascii(&self) -> String {
        ascii(&self.repr())
    }

    /// Python's `repr()`.
    pub fn repr(&self) -> String {
        match self {
            Self::None => "None".to_owned(),
            Self::Bool(true) => "True".to_owned(),
            Self::Bool(false) => "False".to_owned(),
            Self::Int(value) => value.to_string(),
            Self::Float(value) => repr_float(*value),
            Self::Str(value) => repr_str(value),
            Self::List(items) => {
                let items: Vec<String> = items.iter().map(Self::repr).collect();
                format!("[{}]", items.join(", "))
            }
            Self::Dict(fields) => {
                repr_dict(fields.iter().map(|(name, value)| (name, value.repr())))
            }
        }
    }

    /// What the value is as a key; `None` for lists and dicts, which cannot be one.
    pub fn into_key(self) -> Option<Key> {
        /// Below this, a whole float is exactly that integer.
        const WHOLE_BELOW: f64 = 1e38;

        Some(match self {
            Self::None => Key::None,
            Self::Bool(truth) => Key::Int(truth.into()),
            Self::Int(whole) => Key::Int(whole),
            Self::Float(float) if float.fract() == 0.0 && float.abs() < WHOLE_BELOW => {
                Key::Int(float as i128)
            }
            Self::Float(float) => Key::Float(float.to_bits()),
            Self::Str(text) => Key::Str(text),
            Self::List(_) | Self::Dict(_) => return None,
        })
    }
}

impl From<&serde_json::Value> for Value {
    fn from(value: &serde_json::Value) -> Self {
        use serde_json::Value as Json;
        match value {
            Json::Null => Self::None,
            Json::Bool(truth) => Self::Bool(*truth),
            Json::Number(number) => match (number.as_i128(), number.as_f64()) {
                (Some(whole), _) => Self::Int(whole),
                (None, float) => Self::Float(float.unwrap_or(f64::NAN)),
            },
            Json::String(text) => Self::Str(text.clone()),
            Json::Array(items) => Self::List(items.iter().map(Self::from).collect()),
            Json::Object(fields) => {
                let fields = fields.iter();
                Self::Dict(
                    fields
                        .map(|(name, value)| (name.clone(), value.into()))
                        .collect(),
                )
            }
        }
    }
}
