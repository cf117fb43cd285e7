//! [`splice`]: sets fields in a text that otherwise stays as it is.

use serde_json::Value;

use super::object::ObjectError;
use super::scan::Scanner;
use super::syntax_error::Problem;
use super::text::{quote, unquote};

/// The text of an object with some of its fields set, every other byte as it was. A field that is there is set in
/// place, unless it has that value already in whatever spelling; others go to the end, in the order given.
///
/// # Errors
/// If the text is malformed at any depth, or is not an object.
pub fn splice(text: &str, fields: &[(&str, &str)]) -> Result<String, ObjectError> {
    let mut scanner = Scanner::new(text);
    scanner.begin()?;
    if scanner.peek() != Some(b'{') {
        scanner.value()?;
        scanner.end()?;
        return Err(ObjectError::NotAnObject("another value"));
    }
    let mut out = String::with_capacity(text.len() + fields.len() * 40);
    let mut missing: Vec<&(&str, &str)> = fields.iter().collect();
    let mut copied = 0;
    scanner.open(true)?;
    let mut end = scanner.at;
    let mut is_empty = true;
    scanner.whitespace();
    if scanner.peek() == Some(b'}') {
        scanner.close();
    } else {
        is_empty = false;
        loop {
            let (from, to, _) = scanner.key()?;
            let name = unquote(scanner.slice(from, to)).unwrap_or_default();
            scanner.whitespace();
            let start = scanner.at;
            scanner.value()?;
            end = scanner.at;
            // Of a duplicate key the last value counts, so all of them are set.
            if let Some((name, value)) = fields.iter().find(|field| field.0 == name) {
                missing.retain(|field| field.0 != *name);
                if !is_same(scanner.slice(start, end), value) {
                    out.push_str(scanner.slice(copied, start));
                    out.push_str(value);
                    copied = end;
                }
            }
            scanner.whitespace();
            match scanner.peek() {
                Some(b',') => scanner.take(b','),
                Some(b'}') => break scanner.close(),
                _ => return Err(scanner.error(Problem::ExpectedCommaOrBrace).into()),
            };
        }
    }
    scanner.end()?;
    out.push_str(scanner.slice(copied, end));
    for (name, value) in missing {
        if !is_empty {
            out.push(',');
        }
        is_empty = false;
        out.push_str(&quote(name));
        out.push(':');
        out.push_str(value);
    }
    out.push_str(scanner.slice(end, text.len()));
    Ok(out)
}

fn is_same(there: &str, wanted: &str) -> bool {
    let value = |text| serde_json::from_str::<Value>(text).ok();
    there == wanted || value(there).is_some_and(|there| Some(there) == value(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(splice(text, &[]).unwrap(), text);
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
}
