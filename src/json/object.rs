//! [`Object`], [`splice`] and [`Path`]: the fields of objects, their values kept as text.

use std::borrow::Cow;
use std::ops::Range;

use foldhash::fast::RandomState;
use indexmap::IndexMap;
use indexmap::map::Entry;
use serde_json::Value;
use serde_json::value::RawValue;

use super::error::{ObjectError, PathError, Problem};
use super::scan::Scanner;
use super::{quote, unquote};

/// A JSON object's fields in order. Values are JSON text, untouched; of a duplicate key the last value counts, at
/// the first one's position.
#[derive(Debug, Clone, Default)]
pub struct Object<'a> {
    fields: IndexMap<Cow<'a, str>, Field<'a>, RandomState>,
}

#[derive(Debug, Clone)]
struct Field<'a> {
    /// The key with its quotes and escapes, as it is written again.
    quoted: Cow<'a, str>,
    value: Cow<'a, str>,
}

/// Most objects have no more fields than this.
const FIELDS: usize = 8;

impl<'a> Object<'a> {
    /// Reads one level of `text`, checking all of it on the way.
    ///
    /// # Errors
    /// If the text is malformed at any depth, or is not an object.
    pub fn parse(text: &'a str) -> Result<Self, ObjectError> {
        let mut fields = IndexMap::with_capacity_and_hasher(FIELDS, RandomState::default());
        for_each_field(text, |quoted, place| {
            let value = Cow::Borrowed(text.get(place).unwrap_or_default());
            match fields.entry(unquote(quoted).unwrap_or_default()) {
                Entry::Occupied(mut known) => {
                    let known: &mut Field<'_> = known.get_mut();
                    known.value = value;
                }
                Entry::Vacant(new) => {
                    let quoted = Cow::Borrowed(quoted);
                    new.insert(Field { quoted, value });
                }
            }
        })?;
        Ok(Self { fields })
    }

    /// The value of `name` as JSON text.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(|field| &*field.value)
    }

    /// Whether there is a field of that name, whatever its value.
    pub fn contains(&self, name: &str) -> bool {
        self.fields.contains_key(name)
    }

    /// Sets a field to a JSON text: in place if it exists, else at the end.
    pub fn set(&mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) {
        let (name, value) = (name.into(), value.into());
        if let Some(field) = self.fields.get_mut(&name) {
            field.value = value;
        } else {
            let quoted = Cow::Owned(quote(&name));
            self.fields.insert(name, Field { quoted, value });
        }
    }

    /// Removes a field, if it exists.
    pub fn remove(&mut self, name: &str) {
        self.fields.shift_remove(name);
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// The names in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.keys().map(|name| &**name)
    }

    /// For each field in order: its name, its name as quoted JSON text, and its value as JSON text.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        let fields = self.fields.iter();
        fields.map(|(name, field)| (&**name, &*field.quoted, &*field.value))
    }

    /// Appends the object as JSON text, without spaces at this level.
    pub fn write(&self, out: &mut String) {
        self.write_without(&[], out);
    }

    /// Appends the object without the fields of the given names.
    pub fn write_without(&self, names: &[&str], out: &mut String) {
        let fields = || self.iter().filter(|(name, ..)| !names.contains(name));
        let lengths = fields().map(|(_, quoted, value)| quoted.len() + value.len() + 2);
        out.reserve(lengths.sum::<usize>() + 2);
        out.push('{');
        for (position, (_, quoted, value)) in fields().enumerate() {
            let comma = if position > 0 { "," } else { "" };
            out.extend([comma, quoted, ":", value]);
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

/// Checks a text, and calls `take` for each field of the object that it is, with the quoted key and the place of the
/// value. Gives the place behind the opening brace.
fn for_each_field<'a>(
    text: &'a str,
    mut take: impl FnMut(&'a str, Range<usize>),
) -> Result<usize, ObjectError> {
    let mut scanner = Scanner::new(text);
    scanner.begin()?;
    if scanner.peek() != Some(b'{') {
        let kind = kind(scanner.peek());
        scanner.value()?;
        scanner.end()?;
        return Err(ObjectError::NotAnObject(kind));
    }
    scanner.open(true)?;
    let opened = scanner.at;
    scanner.whitespace();
    if scanner.peek() == Some(b'}') {
        scanner.close();
    } else {
        loop {
            let key = scanner.key()?;
            scanner.whitespace();
            let start = scanner.at;
            scanner.value()?;
            take(key, start..scanner.at);
            scanner.whitespace();
            match scanner.peek() {
                Some(b',') => scanner.take(b','),
                Some(b'}') => break scanner.close(),
                _ => return Err(scanner.error(Problem::ExpectedCommaOrBrace).into()),
            };
        }
    }
    scanner.end()?;
    Ok(opened)
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

/// Returns the text of an object with some of its fields set, every other byte as it was. A field that exists is set
/// in place, unless it has that value already in whatever spelling; others go to the end, in the order given.
///
/// # Errors
/// If the text is malformed at any depth, or is not an object.
pub fn splice(text: &str, fields: &[(&str, impl AsRef<str>)]) -> Result<String, ObjectError> {
    let slice = |range: Range<usize>| text.get(range).unwrap_or_default();
    let mut out = String::with_capacity(text.len() + fields.len() * 40);
    let mut missing: Vec<(&str, &str)> = fields
        .iter()
        .map(|(name, value)| (*name, value.as_ref()))
        .collect();
    let mut copied = 0;
    let mut last_end = None;
    let opened = for_each_field(text, |quoted, place| {
        last_end = Some(place.end);
        let name = unquote(quoted).unwrap_or_default();
        // Of a duplicate key the last value counts, so all of them are set.
        if let Some((name, value)) = fields.iter().find(|field| field.0 == name) {
            let value = value.as_ref();
            missing.retain(|field| field.0 != *name);
            if !is_same(slice(place.clone()), value) {
                out.push_str(slice(copied..place.start));
                out.push_str(value);
                copied = place.end;
            }
        }
    })?;
    let end = last_end.unwrap_or(opened);
    out.push_str(slice(copied..end));
    for (position, (name, value)) in missing.into_iter().enumerate() {
        let is_first = last_end.is_none() && position == 0;
        out.extend([if is_first { "" } else { "," }, &quote(name), ":", value]);
    }
    out.push_str(slice(end..text.len()));
    Ok(out)
}

fn is_same(there: &str, wanted: &str) -> bool {
    let value = |text| serde_json::from_str::<Value>(text).ok();
    there == wanted || value(there).is_some_and(|there| Some(there) == value(wanted))
}

/// A way from the top of a JSON text to one of its values.
///
/// Names are separated by dots, and elements of arrays are in brackets, from 0: `choices[0].text`. A leading `$` or
/// `$.` is optional. A field whose own name is the whole path comes first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    text: String,
    steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Field(String),
    Element(usize),
}

impl Path {
    /// Reads a path.
    ///
    /// # Errors
    /// A step is empty, or a bracket holds no number.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        let wrong = || PathError(text.to_owned());
        let rest = text.strip_prefix('$').unwrap_or(text);
        let rest = rest.strip_prefix('.').unwrap_or(rest);
        let mut steps = Vec::new();
        for part in rest.split('.') {
            let (name, brackets) = part.split_at(part.find('[').unwrap_or(part.len()));
            if !name.is_empty() {
                steps.push(Step::Field(name.to_owned()));
            }
            let brackets = match brackets.strip_prefix('[') {
                Some(inner) => inner.strip_suffix(']').ok_or_else(wrong)?.split("]["),
                None if name.is_empty() => return Err(wrong()),
                None => continue,
            };
            for index in brackets {
                steps.push(Step::Element(index.parse().map_err(|_| wrong())?));
            }
        }
        Ok(Self {
            text: rest.to_owned(),
            steps,
        })
    }

    /// Returns the JSON text of the value there; `None` if there is none, or `json` is not JSON.
    pub fn find(&self, json: &str) -> Option<String> {
        self.find_below(json, &self.steps)
    }

    fn find_below(&self, json: &str, steps: &[Step]) -> Option<String> {
        let Some((step, below)) = steps.split_first() else {
            return Some(json.to_owned());
        };
        match step {
            Step::Field(name) => {
                let object = Object::parse(json).ok()?;
                let is_top = steps.len() == self.steps.len();
                match object.get(&self.text).filter(|_| is_top) {
                    Some(value) => Some(value.to_owned()),
                    None => self.find_below(object.get(name)?, below),
                }
            }
            Step::Element(index) => {
                let elements: Vec<&RawValue> = serde_json::from_str(json).ok()?;
                self.find_below(elements.get(*index)?.get(), below)
            }
        }
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

    #[test]
    fn fields_are_set_in_place_or_at_the_end() {
        let text = r#" { "a" : 1.50 ,"\u0062":[1, 2], "c": 3 } "#;
        let fields = [("b", "null"), ("x", "7"), ("a", "2"), ("y", "{}")];
        assert_eq!(
            splice(text, &fields).unwrap(),
            r#" { "a" : 2 ,"\u0062":null, "c": 3,"x":7,"y":{} } "#
        );
        assert_eq!(splice("{}", &[("a", "1")]).unwrap(), r#"{"a":1}"#);
        assert_eq!(
            splice("{ }", &[("a", "1"), ("b", "2")]).unwrap(),
            r#"{"a":1,"b":2 }"#
        );
        assert_eq!(splice(text, &[("", ""); 0]).unwrap(), text);
    }

    #[test]
    fn what_has_the_value_already_keeps_its_spelling() {
        let text = r#"{"agent_ref": {"name": "a"}, "n": 1e0}"#;
        let same = [("agent_ref", r#"{"name":"\u0061"}"#)];
        assert_eq!(splice(text, &same).unwrap(), text);
        assert_eq!(
            splice(text, &[("n", "1")]).unwrap(),
            r#"{"agent_ref": {"name": "a"}, "n": 1}"#
        );
    }

    #[test]
    fn every_duplicate_is_set() {
        assert_eq!(
            splice(r#"{"a":1,"a":2}"#, &[("a", "3")]).unwrap(),
            r#"{"a":3,"a":3}"#
        );
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for text in ["", "[1]", "{", r#"{"a":NaN}"#, r#"{"a":1}}"#] {
            assert!(splice(text, &[("b", "1")]).is_err(), "{text}");
        }
    }

    fn found(path: &str, json: &str) -> Option<String> {
        Path::parse(path).unwrap().find(json)
    }

    #[test]
    fn a_path_leads_through_objects_and_arrays() {
        let json = r#"{"a": {"b": [1, {"c": "x"}], "a.b": 2}, "a.b": 3, "n": null}"#;
        for (path, value) in [
            ("a.b[1].c", Some("\"x\"")),
            ("$.a.b[0]", Some("1")),
            ("a.b", Some("3")),
            ("n", Some("null")),
            ("a.z", None),
            ("a.b[2]", None),
            ("n.x", None),
        ] {
            assert_eq!(found(path, json).as_deref(), value, "{path}");
        }
        assert_eq!(found("[1][0]", "[0,[7]]").as_deref(), Some("7"));
        assert_eq!(found("a", "not JSON"), None);
    }

    #[test]
    fn a_text_that_is_no_path_is_refused() {
        for text in ["", "a..b", "a[x]", "a[1", "."] {
            assert!(Path::parse(text).is_err(), "{text}");
        }
    }
}
