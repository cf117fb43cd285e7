use crate::json::quote;
use crate::python::json::{LoadError, Writer, Written, loads};
use crate::python::repr_str;

/// Returns the body of a tool's request: the call's arguments, rewritten. It is empty if they are null.
///
/// # Errors
/// The output that the model sees instead, word for word NeMo Gym's: the arguments are not JSON.
pub(super) fn body(arguments: &str) -> Result<String, String> {
    match loads(arguments, Writer::Orjson) {
        Ok(Written::Leaf(text)) if arguments.trim_ascii() == "null" && text == "null" => {
            Ok(String::new())
        }
        Ok(value) => {
            let mut text = String::with_capacity(arguments.len());
            value.write(Writer::Orjson, &mut text);
            Ok(text)
        }
        Err(error) => {
            let why = match error {
                LoadError::TooDeep(levels) => format!("they nest deeper than {levels} levels"),
                _ => format!("JSONDecodeError({})", repr_str(&error.to_string())),
            };
            let why = quote(&format!("Invalid tool call arguments: {why}"));
            Err(format!(r#"{{"error": {why}}}"#))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::json::MAX_DEPTH;

    /// The result of NeMo Gym 07d6b0d for arguments, on Python 3.13: the body of the request, the output
    /// that the model sees, or an exception that ends the rollout.
    #[derive(Deserialize)]
    struct Case {
        arguments: String,
        #[serde(default)]
        body: Option<String>,
        output: Option<String>,
        raises: Option<String>,
    }

    #[test]
    fn arguments_become_what_python_makes_of_them() {
        let cases = include_str!("../../../tests/data/tool_arguments.jsonl").lines();
        let (mut wrong, mut raised) = (0, 0);
        for line in cases {
            let case: Case = serde_json::from_str(line).unwrap();
            if case.raises.is_some() {
                raised += 1;
                continue;
            }
            let expected = match case.output {
                Some(output) => Err(output),
                None => Ok(case.body.unwrap_or_default()),
            };
            wrong += u32::from(expected.is_err());
            assert_eq!(body(&case.arguments), expected, "{line}");
        }
        assert!(wrong > 50 && raised < 10, "{wrong} {raised}");
    }

    #[test]
    fn arguments_are_written_anew() {
        for (arguments, expected) in [
            (
                r#" {"a": 1, "b": "é", "\u0061": [ ]} "#,
                r#"{"a":[],"b":"é"}"#,
            ),
            (
                "[1.0, 1e5, 1E-5, 1e16, -0, -0.0]",
                "[1.0,100000.0,0.00001,1e16,0,-0.0]",
            ),
            ("[NaN, -Infinity, 1e999, true]", "[null,null,null,true]"),
            (r#""\u00e9\/\u001F\n\ud83d\ude00\"""#, r#""é/\u001f\n😀\"""#),
            // NeMo Gym fails with these arguments.
            (
                r#"["\ud800x", "\ud800\ud83d\ude00"]"#,
                r#"["\ud800x","\ud800😀"]"#,
            ),
            (
                "[123456789012345678901234567890]",
                "[123456789012345678901234567890]",
            ),
            (" null\n", ""),
            ("NaN", "null"),
            ("{}", "{}"),
        ] {
            assert_eq!(body(arguments), Ok(expected.into()), "{arguments}");
        }
    }

    #[test]
    fn nesting_has_an_end() {
        let nested = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(body(&nested(MAX_DEPTH)), Ok(nested(MAX_DEPTH)));
        let output = body(&nested(MAX_DEPTH * 100)).unwrap_err();
        assert!(output.contains("nest deeper than 1024"), "{output}");
    }
}
