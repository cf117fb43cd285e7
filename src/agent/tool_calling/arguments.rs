use serde_json::{Value, json};

/// The body of a tool's request: the call's arguments, written anew. Of two of one name the last
/// counts.
///
/// # Errors
/// The output that the model sees instead: the arguments are not JSON.
pub(super) fn body(arguments: &str) -> Result<String, String> {
    match serde_json::from_str::<Value>(arguments) {
        Ok(value) => Ok(value.to_string()),
        Err(source) => {
            let why = format!("Invalid tool call arguments: {source}");
            Err(json!({ "error": why }).to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_written_anew_and_what_is_no_json_is_told_to_the_model() {
        assert_eq!(
            body(" {\"a\": 1, \"b\": \"é\", \"a\": 2} "),
            Ok(r#"{"a":2,"b":"é"}"#.into())
        );
        assert_eq!(body("[1.0]"), Ok("[1.0]".into()));
        for wrong in ["", "{", "{'a': 1}", "x"] {
            let output = body(wrong).unwrap_err();
            assert!(
                output.starts_with(r#"{"error":"Invalid tool call arguments: "#),
                "{output}"
            );
        }
    }
}
