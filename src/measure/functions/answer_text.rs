//! The scalar function `answer_text`.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, StringBuilder};
use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::logical_expr::ScalarUDF;
use datafusion::logical_expr::scalar_doc_sections::DOC_SECTION_OTHER;
use serde_json::{Number, Value};

use super::argument::text;
use super::scalar::ScalarFunction;
use crate::json::quote;

/// `answer_text(json_text VARCHAR) -> VARCHAR`: a text that two JSON values share if Python compares
/// them as equal: `1`, `1.0` and `true` give `1`, the string `"1"` gives `"1"` with its quotes. Null
/// for JSON's null and for SQL's; an error for a list or an object, and for what is no JSON.
pub fn answer_text() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_OTHER,
        "answer_text",
        "One text for all JSON values that are equal (1, 1.0 and true), so that answers can be counted.",
        vec![text(
            "json_text",
            "An answer as JSON text: a string with its quotes, a number, a boolean or null.",
        )],
        DataType::Utf8,
        compute,
    )
}

fn compute(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let [answers] = columns else {
        return exec_err!("answer_text: {} columns instead of 1", columns.len());
    };
    let mut texts = StringBuilder::new();
    for answer in answers.as_string_view() {
        texts.append_option(answer.map(canonical).transpose()?.flatten());
    }
    Ok(Arc::new(texts.finish()))
}

fn canonical(answer: &str) -> Result<Option<String>> {
    let value: Value = serde_json::from_str(answer).map_err(|e| {
        exec_datafusion_err!(
            "answer_text: {} is no JSON ({e}); give JSON text, with quotes around a string",
            shown(answer)
        )
    })?;
    Ok(match value {
        Value::Null => None,
        Value::Bool(truth) => Some(u8::from(truth).to_string()),
        Value::Number(number) => Some(decimal(&number)),
        Value::String(string) => Some(quote(&string)),
        Value::Array(_) | Value::Object(_) => {
            let answer = shown(answer);
            return exec_err!(
                "answer_text: the answer {answer} is a list or an object, which cannot be counted; point the answer's path at a string, a number or a boolean in it"
            );
        }
    })
}

/// The beginning of an answer, for a message.
fn shown(answer: &str) -> String {
    const MOST: usize = 80;
    match answer.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", answer.get(..end).unwrap_or_default()),
        None => answer.to_owned(),
    }
}

/// Whole numbers without a point, so that 1.0 is 1.
fn decimal(number: &Number) -> String {
    // Whole floats within this range have an exact integer; beyond it there are floats only.
    const RANGE: std::ops::Range<f64> = -1e20..1e20;
    match number.as_f64().filter(|_| number.is_f64()) {
        Some(float) if float.fract() == 0.0 && RANGE.contains(&float) => {
            (float as i128).to_string()
        }
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(answer: &str) -> Option<String> {
        canonical(answer).unwrap()
    }

    #[test]
    fn equal_values_have_one_text() {
        let classes: [&[&str]; 8] = [
            &["1", "1.0", "true", " 1e0 ", "10e-1"],
            &["0", "-0", "-0.0", "false"],
            &[r#""1""#, r#""\u0031""#],
            &[r#""a\"b/\n""#, r#""a\u0022b\/\u000a""#],
            &[
                "9007199254740992",
                "9007199254740992.0",
                "9.007199254740992e15",
            ],
            &["18446744073709551616", "1.8446744073709552e19"],
            &["1e300", "10e299"],
            &[r#""""#],
        ];
        let texts: Vec<String> = classes
            .iter()
            .map(|class| {
                let first = text(class[0]).unwrap();
                for value in *class {
                    assert_eq!(text(value).unwrap(), first, "{value}");
                }
                first
            })
            .collect();
        let distinct: std::collections::HashSet<&String> = texts.iter().collect();
        assert_eq!(distinct.len(), classes.len(), "{texts:?}");
        assert_ne!(text("9007199254740993"), text("9007199254740992.0"));
        assert_eq!(text("null"), None);
    }

    #[test]
    fn what_cannot_be_counted_is_an_error() {
        let message = |answer: &str| canonical(answer).unwrap_err().to_string();
        assert!(message("[1]").contains("point the answer's path at"));
        assert!(message(r#"{"a": 1}"#).contains("a list or an object"));
        assert!(message("paris").contains("paris is no JSON"));
        assert!(message(&"x".repeat(500)).len() < 300);
    }
}
