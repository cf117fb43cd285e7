//! [`Template`]: a text in the syntax of Python's `str.format`, filled from the fields of a task.

use super::number::{format_float, format_whole};
use super::spec::{Align, Spec};
use super::{MAX_DEPTH, Value, repr_list, repr_str};
use crate::json::Object;

/// What is wrong with a template, whatever it is filled with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// A brace that is neither doubled nor part of a field.
    #[error("Single '{0}' encountered in format string; write it twice to mean the brace itself")]
    LoneBrace(char),
    /// `{}` or `{0}`.
    #[error(
        "Format string contains positional fields; name a field of the task between the braces"
    )]
    Positional,
    /// The text ends within a field.
    #[error("expected '}}' before end of string")]
    Unclosed,
    /// `{a{`.
    #[error("unexpected '{{' in field name")]
    BraceInName,
    /// The text ends within a specification.
    #[error("unmatched '{{' in format spec")]
    UnclosedSpec,
    /// `{a!` at the end.
    #[error("end of string while looking for conversion specifier")]
    NoConversion,
    /// `{a!rx}`.
    #[error("expected ':' after conversion specifier")]
    AfterConversion,
    /// Neither `!r`, `!s` nor `!a`.
    #[error("Unknown conversion specifier '{0}'; use !r, !s or !a")]
    Conversion(char),
    /// `{a[b}`.
    #[error("Missing ']' in format string")]
    Bracket,
    /// `{a.}` or `{a[]}`.
    #[error("Empty attribute in format string")]
    EmptyAttribute,
    /// `{a[b]c}`.
    #[error("Only '.' or '[' may follow ']' in format field specifier")]
    AfterBracket,
    /// Fields within the specification of a field within a specification.
    #[error("Max string recursion exceeded")]
    Nesting,
}

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

/// A parsed template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(Field),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    name: String,
    path: Vec<Step>,
    /// The letter behind `!`: r, s or a.
    conversion: Option<char>,
    /// What follows the colon; it may have fields of its own.
    spec: Template,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Attribute(String),
    Key(String),
    Index(usize),
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// What Python refuses in it, whatever it is filled with.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        // Python's own limit: a text, and the specifications in it.
        const LEVELS: usize = 2;
        Self::parse_level(text, LEVELS)
    }

    /// Fills the fields from `task`.
    ///
    /// # Errors
    /// The task lacks a field, or a field's value does not fit what the template does to it.
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

    fn parse_level(text: &str, levels: usize) -> Result<Self, TemplateError> {
        if levels == 0 && text.contains('{') {
            return Err(TemplateError::Nesting);
        }
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (before, from) = rest.split_at(at);
            literal.push_str(before);
            let mut following = from.chars();
            let brace = following.next().unwrap_or('{');
            let after = following.as_str();
            if let Some(after_pair) = after.strip_prefix(brace) {
                literal.push(brace);
                rest = after_pair;
                continue;
            }
            if brace == '}' || after.is_empty() {
                return Err(TemplateError::LoneBrace(brace));
            }
            if !literal.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut literal)));
            }
            let (field, after_field) = field(after, levels)?;
            parts.push(Part::Field(field));
            rest = after_field;
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(Part::Text(literal));
        }
        Ok(Self { parts })
    }
}

/// Reads a field from behind its opening brace; gives it and what follows its closing brace.
fn field(text: &str, levels: usize) -> Result<(Field, &str), TemplateError> {
    let (name_end, end) = name_end(text)?;
    let (name, path) = path(text.get(..name_end).unwrap_or_default())?;
    let mut rest = text.get(name_end + 1..).unwrap_or_default();
    let mut conversion = None;
    let mut spec = Template { parts: Vec::new() };
    let mut has_spec = end == ':';
    if end == '!' {
        let mut following = rest.chars();
        let letter = following.next().ok_or(TemplateError::NoConversion)?;
        if !matches!(letter, 'r' | 's' | 'a') {
            return Err(TemplateError::Conversion(letter));
        }
        conversion = Some(letter);
        match following.next() {
            Some('}') => {}
            Some(':') => has_spec = true,
            Some(_) => return Err(TemplateError::AfterConversion),
            None => return Err(TemplateError::UnclosedSpec),
        }
        rest = following.as_str();
    }
    if has_spec {
        let (text, after) = spec_text(rest)?;
        spec = Template::parse_level(text, levels - 1)?;
        rest = after;
    }
    let field = Field {
        name,
        path,
        conversion,
        spec,
    };
    Ok((field, rest))
}

/// Where a field's name ends, and with which character; brackets hide such characters.
fn name_end(text: &str) -> Result<(usize, char), TemplateError> {
    let mut in_brackets = false;
    for (at, character) in text.char_indices() {
        match character {
            ']' if in_brackets => in_brackets = false,
            _ if in_brackets => {}
            '{' => return Err(TemplateError::BraceInName),
            '[' => in_brackets = true,
            '}' | ':' | '!' => return Ok((at, character)),
            _ => {}
        }
    }
    Err(TemplateError::Unclosed)
}

/// Splits at the brace that closes the field around a specification.
fn spec_text(text: &str) -> Result<(&str, &str), TemplateError> {
    let mut open = 1;
    for (at, character) in text.char_indices() {
        match character {
            '{' => open += 1,
            '}' => open -= 1,
            _ => {}
        }
        if open == 0 {
            let (spec, after) = text.split_at(at);
            return Ok((spec, after.get(1..).unwrap_or_default()));
        }
    }
    Err(TemplateError::UnclosedSpec)
}

/// Splits `name.attribute[key]`.
fn path(text: &str) -> Result<(String, Vec<Step>), TemplateError> {
    let (name, mut rest) = text.split_at(text.find(['.', '[']).unwrap_or(text.len()));
    if name.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(TemplateError::Positional);
    }
    let mut steps = Vec::new();
    while !rest.is_empty() {
        let step;
        if let Some(after) = rest.strip_prefix('.') {
            let (attribute, tail) = after.split_at(after.find(['.', '[']).unwrap_or(after.len()));
            (step, rest) = (Step::Attribute(attribute.to_owned()), tail);
        } else if let Some(after) = rest.strip_prefix('[') {
            let (key, tail) = after.split_once(']').ok_or(TemplateError::Bracket)?;
            let is_index = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_digit());
            let index = if is_index { key.parse().ok() } else { None };
            step = index.map_or_else(|| Step::Key(key.to_owned()), Step::Index);
            rest = tail;
        } else {
            return Err(TemplateError::AfterBracket);
        }
        if matches!(&step, Step::Attribute(name) | Step::Key(name) if name.is_empty()) {
            return Err(TemplateError::EmptyAttribute);
        }
        steps.push(step);
    }
    Ok((name.to_owned(), steps))
}

impl Field {
    fn fill(&self, task: &Object<'_>) -> Result<String, FillError> {
        let missing = |key: String| FillError::MissingField {
            key,
            fields: repr_list(task.names()),
        };
        let text = task
            .get(&self.name)
            .ok_or_else(|| missing(repr_str(&self.name)))?;
        let mut value = Value::parse(text).ok_or_else(|| {
            let name = repr_str(&self.name);
            FillError::Format(format!(
                "field {name} nests deeper than {MAX_DEPTH} levels and cannot be printed"
            ))
        })?;
        for step in &self.path {
            value = descend(value, step, &missing)?;
        }
        let value = match self.conversion {
            None => value,
            Some('r') => Value::Str(value.repr()),
            Some('a') => Value::Str(value.ascii()),
            Some(_) => Value::Str(value.text()),
        };
        formatted(&value, &self.spec.fill(task)?)
    }
}

pub(super) fn refused<T>(message: impl Into<String>) -> Result<T, FillError> {
    Err(FillError::Format(message.into()))
}

fn descend(
    value: Value,
    step: &Step,
    missing: &impl Fn(String) -> FillError,
) -> Result<Value, FillError> {
    let type_name = value.type_name();
    match (step, value) {
        (Step::Attribute(name), _) => {
            refused(format!("'{type_name}' object has no attribute '{name}'"))
        }
        (Step::Key(key), Value::Dict(fields)) => {
            let field = fields.into_iter().find(|(name, _)| name == key);
            field
                .map(|(_, value)| value)
                .ok_or_else(|| missing(repr_str(key)))
        }
        // All keys of JSON objects are strings.
        (Step::Index(index), Value::Dict(_)) => Err(missing(index.to_string())),
        (Step::Index(index), Value::List(items)) => match items.into_iter().nth(*index) {
            Some(item) => Ok(item),
            None => refused("list index out of range"),
        },
        (Step::Index(index), Value::Str(text)) => match text.chars().nth(*index) {
            Some(character) => Ok(Value::Str(character.into())),
            None => refused("string index out of range"),
        },
        (Step::Key(_), Value::List(_)) => {
            refused("list indices must be integers or slices, not str")
        }
        (Step::Key(_), Value::Str(_)) => refused("string indices must be integers, not 'str'"),
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
            refused(format!(
                "unsupported format string passed to {type_name}.__format__"
            ))
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

    #[test]
    fn malformed_templates_say_why() {
        for (text, expected) in [
            ("}", TemplateError::LoneBrace('}')),
            ("a } b", TemplateError::LoneBrace('}')),
            ("a {", TemplateError::LoneBrace('{')),
            ("{}", TemplateError::Positional),
            ("{0}", TemplateError::Positional),
            ("{[a]}", TemplateError::Positional),
            ("{!r}", TemplateError::Positional),
            ("{a", TemplateError::Unclosed),
            ("{a[}", TemplateError::Unclosed),
            ("{a[b", TemplateError::Unclosed),
            ("{a{b}}", TemplateError::BraceInName),
            ("{a:", TemplateError::UnclosedSpec),
            ("{a:{b}", TemplateError::UnclosedSpec),
            ("{a!", TemplateError::NoConversion),
            ("{a!r", TemplateError::UnclosedSpec),
            ("{a!rs}", TemplateError::AfterConversion),
            ("{a!x}", TemplateError::Conversion('x')),
            ("{a.}", TemplateError::EmptyAttribute),
            ("{a[]}", TemplateError::EmptyAttribute),
            ("{a[b]c}", TemplateError::AfterBracket),
            ("{a:{b:{c}}}", TemplateError::Nesting),
        ] {
            assert_eq!(Template::parse(text), Err(expected), "{text}");
        }
    }

    #[test]
    fn doubled_braces_are_text() {
        let template = Template::parse("{{a}} }}{{").unwrap();
        assert_eq!(template.parts, [Part::Text("{a} }{".to_owned())]);
    }

    #[test]
    fn a_field_has_a_path_a_conversion_and_a_spec() {
        let template = Template::parse("{a[b.c].d[0]!r:>{w}}").unwrap();
        let [Part::Field(field)] = template.parts.as_slice() else {
            panic!("one field: {template:?}");
        };
        assert_eq!(field.name, "a");
        let steps = [
            Step::Key("b.c".into()),
            Step::Attribute("d".into()),
            Step::Index(0),
        ];
        assert_eq!(field.path, steps);
        assert_eq!(field.conversion, Some('r'));
        assert_eq!(field.spec.parts.len(), 2);
    }
}
