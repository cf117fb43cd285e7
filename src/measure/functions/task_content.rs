//! The scalar function `task_content`.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, StringBuilder};
use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::logical_expr::ScalarUDF;
use datafusion::logical_expr::scalar_doc_sections::DOC_SECTION_OTHER;

use super::argument::text;
use super::scalar::ScalarFunction;
use crate::json::{Object, ObjectError, quote, unquote};
use crate::request::{
    AGENT_REF, ATTEMPT_INDEX, ENVIRONMENT_SERVER, RESPONSES_CREATE_PARAMS, ROLLOUT_INDEX,
    SKILLS_REF, TASK_INDEX,
};

/// Fields that say which task it is or who works on it.
const IDENTITY: [&str; 6] = [
    TASK_INDEX,
    ROLLOUT_INDEX,
    ATTEMPT_INDEX,
    AGENT_REF,
    ENVIRONMENT_SERVER,
    SKILLS_REF,
];

/// What of the request to the model is the task; the rest is how the model is run.
const ASKED: [&str; 3] = ["input", "instructions", "tools"];

/// Hexadecimal digits of a digest: 128 bits.
const DIGITS: usize = 32;

/// `task_content(request VARCHAR) -> VARCHAR`: a digest of what a task asks, the same in every run and
/// at every place in it: of the request without its indices, `agent_ref` and `skills_ref`, and of its
/// `responses_create_params` only `input`, `instructions` and `tools`. So a task stays the same with
/// another model, temperature, seed or limit of tokens. White space and the escapes of strings make no
/// difference, the order of fields and the spelling of numbers do. An error for what is no JSON object.
pub fn task_content() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_OTHER,
        "task_content",
        "A digest of what a task asks, the same in every run: without its index and agent, and of the \
         request to the model only input, instructions and tools.",
        vec![text("request", "A request, as JSON text.")],
        DataType::Utf8,
        compute,
    )
}

fn compute(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let [requests] = columns else {
        return exec_err!("task_content: {} columns instead of 1", columns.len());
    };
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
    let hash = blake3::hash(plain(&content).as_bytes()).to_hex();
    Ok(hash.chars().take(DIGITS).collect())
}

/// The same JSON without white space between its tokens, and with as few escapes as can be.
fn plain(json: &str) -> String {
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

/// The position behind the string that a text begins with.
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
