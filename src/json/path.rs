//! [`Path`]: where a value stands within JSON text, as `a.b[0].c`.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::object::Object;

/// A way from the top of a JSON text to one of its values.
///
/// Names are separated by dots, elements of arrays stand in brackets, from 0: `choices[0].text`. A
/// leading `$` or `$.` may be written. A field whose own name is the whole path comes first.
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

/// A text that is no path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no path; write it as a.b[0].c")]
pub struct PathError(String);

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

    /// The JSON text of the value there; nothing if there is none, or `json` is not JSON.
    pub fn find(&self, json: &str) -> Option<String> {
        let mut at = Cow::Borrowed(json);
        for (number, step) in self.steps.iter().enumerate() {
            let next = match step {
                Step::Field(name) => {
                    let object = Object::parse(&at).ok()?;
                    let whole = object.get(&self.text).filter(|_| number == 0);
                    if let Some(value) = whole {
                        return Some(value.to_owned());
                    }
                    object.get(name)?.to_owned()
                }
                Step::Element(index) => {
                    let elements: Vec<&RawValue> = serde_json::from_str(&at).ok()?;
                    elements.get(*index)?.get().to_owned()
                }
            };
            at = Cow::Owned(next);
        }
        Some(at.into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
