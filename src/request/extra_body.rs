//! The text in `metadata.extra_body`: a JSON object that is read and written again the way Python's `json` does,
//! so that a request is the same, byte for byte, whichever collector made it.

use crate::python::json::{LoadError, Writer, Written, loads};

/// Why the text of an extra body cannot carry a seed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExtraBodyError {
    /// The text is not what Python's `json` reads.
    #[error("it is malformed: {0}")]
    Malformed(LoadError),
    /// The text is JSON, but not an object.
    #[error("it is not an object")]
    NotAnObject,
}

/// The text of an extra body on both sides of its seed's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AroundSeed {
    pub before: String,
    pub after: String,
}

/// Rewrites `text` with a place for the value of `seed`: where the object has that key, else at the end.
pub(super) fn around_seed(text: &str) -> Result<AroundSeed, ExtraBodyError> {
    let loaded = loads(text, Writer::Dumps).map_err(ExtraBodyError::Malformed)?;
    let Written::Object(mut fields) = loaded else {
        return Err(ExtraBodyError::NotAnObject);
    };
    let no_value = Written::Leaf(String::new());
    let (seed, _) = fields.insert_full("\"seed\"".to_owned(), no_value);
    let after = fields.split_off(seed + 1);
    let (mut before, mut rest) = (String::new(), String::new());
    Written::Object(fields).write(Writer::Dumps, &mut before);
    before.truncate(before.len() - 1);
    if after.is_empty() {
        rest.push('}');
    } else {
        Written::Object(after).write(Writer::Dumps, &mut rest);
        rest.replace_range(..1, ", ");
    }
    Ok(AroundSeed {
        before,
        after: rest,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeded(text: &str) -> Result<String, ExtraBodyError> {
        around_seed(text).map(|around| around.before + "<>" + &around.after)
    }

    #[test]
    fn the_seed_goes_in_place_or_to_the_end() {
        assert_eq!(seeded("{}").unwrap(), r#"{"seed": <>}"#);
        assert_eq!(seeded(r#" {"a":1} "#).unwrap(), r#"{"a": 1, "seed": <>}"#);
        assert_eq!(
            seeded(r#"{"a":1,"\u0073eed":{"x":[]},"b":2}"#).unwrap(),
            r#"{"a": 1, "seed": <>, "b": 2}"#
        );
        assert_eq!(seeded(r#"{"seed":1,"seed":2}"#).unwrap(), r#"{"seed": <>}"#);
    }

    #[test]
    fn the_text_is_spelled_as_python_spells_it() {
        for (text, expected) in [
            ("1e3", "1000.0"),
            ("1E-3", "0.001"),
            ("1e22", "1e+22"),
            ("-0", "0"),
            ("-0.0", "-0.0"),
            ("1e400", "Infinity"),
            ("-1e400", "-Infinity"),
            ("NaN", "NaN"),
            (
                "123456789012345678901234567890",
                "123456789012345678901234567890",
            ),
            (r#"[ ]"#, "[]"),
            (r#"{ }"#, "{}"),
            (
                r#"[1 ,{"a":null,"b":[true,false],"a":2}]"#,
                r#"[1, {"a": 2, "b": [true, false]}]"#,
            ),
            ("\"é/🙂\u{7f}\"", r#""\u00e9/\ud83d\ude42\u007f""#),
            (
                r#""\ud83d\ude42\ud800 \/\b\f\n\r\t\"\\""#,
                r#""\ud83d\ude42\ud800 /\b\f\n\r\t\"\\""#,
            ),
        ] {
            assert_eq!(
                seeded(&format!("{{\"k\":{text}}}")).unwrap(),
                format!("{{\"k\": {expected}, \"seed\": <>}}")
            );
        }
    }

    #[test]
    fn what_python_does_not_read_is_refused() {
        for text in [
            "",
            " ",
            "{",
            "{\"a\"}",
            "{\"a\":1,}",
            "{a:1}",
            "{\"a\":01}",
            "{\"a\":1.}",
            "{\"a\":1e}",
            "{\"a\":-}",
            "{\"a\":.5}",
            "{\"a\":\"\n\"}",
            "{\"a\":\"\\x\"}",
            "{\"a\":\"\\u12\"}",
            "{} x",
            "\u{feff}{}",
            "{\"a\":[1,]}",
            "{\"a\":\"\\u+123\"}",
        ] {
            assert!(
                matches!(seeded(text), Err(ExtraBodyError::Malformed(_))),
                "{text}"
            );
        }
        for text in ["null", "[]", "5", "\"{}\"", "NaN"] {
            assert_eq!(seeded(text), Err(ExtraBodyError::NotAnObject), "{text}");
        }
        assert!(
            seeded(&format!(
                "{{\"a\":{}1{}}}",
                "[".repeat(300),
                "]".repeat(300)
            ))
            .is_err()
        );
        assert!(seeded(&format!("{{\"a\":{}}}", "1".repeat(4301))).is_err());
    }
}
