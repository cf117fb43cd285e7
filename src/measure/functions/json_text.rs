//! Functions of JSON text: `json_at` and `json_text_at` follow a path, `answer_text` makes equal answers the same text, and
//! `task_content` digests what a task asks.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, StringBuilder, StringViewBuilder};
use arrow::datatypes::DataType;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use datafusion::logical_expr::ScalarUDF;
use datafusion::logical_expr::scalar_doc_sections::DOC_SECTION_OTHER;
use serde_json::{Number, Value};

use super::scalar::{Compute, ScalarFunction, exactly, text};
use crate::json::{Object, ObjectError, Path, quote, unquote};
use crate::request::{
    AGENT_REF, ATTEMPT_INDEX, ENVIRONMENT_SERVER, RESPONSES_CREATE_PARAMS, ROLLOUT_INDEX,
    SKILLS_REF, TASK_INDEX,
};

/// `json_at(json VARCHAR, path VARCHAR) -> VARCHAR`: the JSON text of the value at a path such as
/// `metadata.tags[0]`; null if there is none. An error if `path` is not a path.
pub fn json_at() -> ScalarUDF {
    function(
        "json_at",
        "The JSON text of the value at a path within JSON text; null if there is none.",
        |columns| each(columns, Some),
    )
}

/// `json_text_at(json VARCHAR, path VARCHAR) -> VARCHAR`: like [`json_at`], but a string without its quotes and escapes,
/// and null for JSON's null.
pub fn json_text_at() -> ScalarUDF {
    function(
        "json_text_at",
        "The value at a path within JSON text as text; null if there is none.",
        |columns| each(columns, plain),
    )
}

fn function(name: &'static str, about: &str, compute: Compute) -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_OTHER,
        name,
        about,
        vec![
            text("json", "JSON text."),
            text("path", "A path such as a.b[0].c."),
        ],
        DataType::Utf8View,
        compute,
    )
}

/// Returns the value that each row's path leads to, passed through `shown`.
fn each(columns: &[ArrayRef], shown: fn(String) -> Option<String>) -> Result<ArrayRef> {
    let [texts, paths] = exactly(columns)?;
    let mut parsed: HashMap<&str, Path> = HashMap::new();
    let mut found = StringViewBuilder::new();
    for (text, path) in texts.as_string_view().iter().zip(paths.as_string_view()) {
        let Some(path) = path else {
            found.append_null();
            continue;
        };
        let path = match parsed.entry(path) {
            Entry::Occupied(parsed) => parsed.into_mut(),
            Entry::Vacant(new) => {
                let path = Path::parse(path);
                new.insert(path.map_err(|error| DataFusionError::External(error.into()))?)
            }
        };
        let value = text.and_then(|text| path.find(text));
        found.append_option(value.and_then(shown));
    }
    Ok(Arc::new(found.finish()))
}

/// Returns the text of a JSON string, `None` for null, and the JSON text of anything else.
fn plain(value: String) -> Option<String> {
    if value == "null" {
        return None;
    }
    Some(match unquote(&value) {
        Some(text) => text.into_owned(),
        None => value,
    })
}

/// `answer_text(json_text VARCHAR) -> VARCHAR`: the same text for two JSON values if Python compares them as equal: `1`,
/// `1.0` and `true` give `1`, the string `"1"` gives `"1"` with its quotes. Null for JSON's null and for SQL's. An error
/// for a list, an object, or text that is not JSON.
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
        answer_texts,
    )
}

fn answer_texts(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let [answers] = exactly(columns)?;
    let mut texts = StringBuilder::new();
    for answer in answers.as_string_view() {
        texts.append_option(answer.map(canonical).transpose()?.flatten());
    }
    Ok(Arc::new(texts.finish()))
}

fn canonical(answer: &str) -> Result<Option<String>> {
    let value: Value = serde_json::from_str(answer).map_err(|e| {
        exec_datafusion_err!(
            "answer_text: {} is not JSON ({e}); give JSON text, with quotes around a string",
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

/// Returns the beginning of an answer, for an error text.
fn shown(answer: &str) -> String {
    const MOST: usize = 80;
    match answer.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", answer.get(..end).unwrap_or_default()),
        None => answer.to_owned(),
    }
}

/// Writes whole numbers without a decimal point, so that 1.0 is 1.
fn decimal(number: &Number) -> String {
    // In this range a whole float has an exact integer; beyond it only floats occur.
    const RANGE: std::ops::Range<f64> = -1e20..1e20;
    match number.as_f64().filter(|_| number.is_f64()) {
        Some(float) if float.fract() == 0.0 && RANGE.contains(&float) => {
            (float as i128).to_string()
        }
        _ => number.to_string(),
    }
}

/// Fields that identify the task or the agent.
const IDENTITY: [&str; 6] = [
    TASK_INDEX,
    ROLLOUT_INDEX,
    ATTEMPT_INDEX,
    AGENT_REF,
    ENVIRONMENT_SERVER,
    SKILLS_REF,
];

/// Fields of the model request that belong to the task; the others say how the model runs.
const ASKED: [&str; 3] = ["input", "instructions", "tools"];

/// Hexadecimal digits of a digest (128 bits).
const DIGITS: usize = 32;

/// `task_content(request VARCHAR) -> VARCHAR`: a digest of what a task asks, the same in every run and at every index.
///
/// It leaves out the indices, `agent_ref` and `skills_ref`, and takes only `input`, `instructions` and `tools` of
/// `responses_create_params`: a task keeps its digest with another model, temperature, seed or token limit. White space
/// and string escapes make no difference; the order of fields and the spelling of numbers do. An error if `request` is
/// not a JSON object.
pub fn task_content() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_OTHER,
        "task_content",
        "A digest of what a task asks, the same in every run: without its index and agent, and of the \
         request to the model only input, instructions and tools.",
        vec![text("request", "A request, as JSON text.")],
        DataType::Utf8,
        digests,
    )
}

fn digests(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let [requests] = exactly(columns)?;
    let mut digests = StringBuilder::new();
    for request in requests.as_string_view() {
        let digest = request.map(digest).transpose();
        let digest = digest.map_err(|error| exec_datafusion_err!("task_content: {error}"))?;
        digests.append_option(digest);
    }
    Ok(Arc::new(digests.finish()))
}

fn digest(request: &str) -> Result<String, ObjectError> {
    let mut request = Object::parse(request)?;
    let asked = request
        .get(RESPONSES_CREATE_PARAMS)
        .and_then(|params| Object::parse(params).ok())
        .map(|params| {
            let names: Vec<&str> = params
                .names()
                .filter(|name| !ASKED.contains(name))
                .collect();
            let mut asked = String::new();
            params.write_without(&names, &mut asked);
            asked
        });
    if let Some(asked) = asked {
        request.set(RESPONSES_CREATE_PARAMS, asked);
    }
    let mut content = String::new();
    request.write_without(&IDENTITY, &mut content);
    let hash = blake3::hash(compact(&content).as_bytes()).to_hex();
    Ok(hash.chars().take(DIGITS).collect())
}

/// Returns the JSON without white space between its tokens and with the fewest escapes.
fn compact(json: &str) -> String {
    let mut plain = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('"') {
        let (before, from_quote) = rest.split_at(at);
        plain.extend(before.split_ascii_whitespace());
        let (string, after) = from_quote.split_at(end_of_string(from_quote));
        match unquote(string).filter(|_| string.contains('\\')) {
            Some(text) => plain.push_str(&quote(&text)),
            None => plain.push_str(string),
        }
        rest = after;
    }
    plain.extend(rest.split_ascii_whitespace());
    plain
}

/// Returns the end of the string literal that `text` begins with.
fn end_of_string(text: &str) -> usize {
    let mut bytes = text.bytes().enumerate().skip(1);
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'\\' => _ = bytes.next(),
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
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
        assert!(message("paris").contains("paris is not JSON"));
        assert!(message(&"x".repeat(500)).len() < 300);
    }

    const TASK: &str = r#"{"responses_create_params":{"input":[{"role":"user","content":"é \"x\" [1, 2]"}],"tools":[]},"answer":3}"#;

    fn digest_of(request: &str) -> String {
        digest(request).unwrap()
    }

    #[test]
    fn what_identifies_or_steers_makes_no_difference() {
        let same = [
            r#"{"_ng_task_index":7,"responses_create_params":{"temperature":0.2,"input":[{"role":"user","content":"é \"x\" [1, 2]"}],"model":"m","tools":[],"seed":1,"max_output_tokens":5},"answer":3}"#,
            r#"{"agent_ref":{"name":"a"},"responses_create_params":{"input":[{"role":"user","content":"é \"x\" [1, 2]"}],"tools":[]},"answer":3,"_ng_rollout_index":1,"_ng_attempt_index":2,"skills_ref":"s"}"#,
            "{ \"responses_create_params\" : {\"input\": [{\"role\": \"user\",\n \"content\": \"\\u00e9 \\\"x\\\" [1, 2]\"}], \"tools\":[ ]}, \"answer\": 3 }",
        ];
        let expected = digest_of(TASK);
        assert_eq!(expected.len(), DIGITS);
        for request in same {
            assert_eq!(digest_of(request), expected, "{request}");
        }
    }

    #[test]
    fn what_is_asked_makes_a_difference() {
        let others = [
            TASK.replace("[1, 2]", "[1,2]"),
            TASK.replace("user", "system"),
            TASK.replace("\"answer\":3", "\"answer\":4"),
            TASK.replace("\"tools\":[]", "\"tools\":[{}]"),
            TASK.replace("\"tools\":[]", "\"instructions\":\"Be short.\""),
            TASK.replace(",\"answer\":3", ""),
            r#"{"responses_create_params":null,"answer":3}"#.to_owned(),
        ];
        let mut digests: Vec<String> = others.iter().map(|other| digest_of(other)).collect();
        digests.push(digest_of(TASK));
        digests.sort();
        digests.dedup();
        assert_eq!(digests.len(), others.len() + 1);
    }

    #[test]
    fn a_digest_stays_the_same_over_versions() {
        let text = r#"{"responses_create_params":{"input":"What is 1 + 2?"}}"#;
        let hash = blake3::hash(text.as_bytes()).to_hex().to_string();
        assert_eq!(digest_of(text), hash[..32]);
    }

    #[test]
    fn what_is_no_request_is_an_error() {
        for request in ["[1]", "{", ""] {
            assert!(digest(request).is_err(), "{request}");
        }
    }
}
