//! Suite `preprocess`: from input lines to the requests of all rollouts.

use std::fs;
use std::path::Path;

use rollstream::config::{Repeats, SeedField};
use rollstream::json::{Object, unquote};
use rollstream::read::{Overrides, Prompt, ReadError, ReadOptions, ReadSummary, TaskReader, open};
use rollstream::request::RequestTemplate;
use serde_json::Value;
use serde_json::value::RawValue;

use super::differences;

/// Where a case's expectations are if the seed goes elsewhere than by default.
const VARIANTS: [(&str, SeedField); 2] = [
    ("expected", SeedField::MetadataExtraBody),
    ("expected_seed_in_params", SeedField::ResponsesCreateParams),
];

/// Runs a case, in each variant that it has expectations for.
pub fn run(case_dir: &Path, case: &Value) -> Result<(), String> {
    for (folder, seed_field) in VARIANTS {
        let expected = case_dir.join(folder);
        if expected.exists() {
            check(case_dir, case, &expected, seed_field)
                .map_err(|error| format!("{folder}: {error}"))?;
        }
    }
    Ok(())
}

fn check(
    case_dir: &Path,
    case: &Value,
    expected: &Path,
    seed_field: SeedField,
) -> Result<(), String> {
    let outcome = collect(case_dir, case, seed_field);
    if expected.join("error.json").exists() {
        return match outcome {
            Ok((requests, _)) => Err(format!("expected an error, got {} rows", requests.len())),
            Err(messages) => check_error(case_dir, expected, &messages),
        };
    }
    let (requests, summary) =
        outcome.map_err(|messages| format!("unexpected error: {}", messages.join("\n")))?;
    let text = read(&expected.join("materialized_inputs.jsonl"))?;
    let wanted: Vec<&str> = text.split('\n').filter(|line| !line.is_empty()).collect();
    if wanted.len() != requests.len() {
        return Err(format!(
            "expected {} rows, got {}",
            wanted.len(),
            requests.len()
        ));
    }
    for (row, (wanted, request)) in wanted.iter().zip(&requests).enumerate() {
        if Node::parse(wanted)? != Node::parse(request)? {
            return Err(format!("row {row}:\nexpected {wanted}\ngot      {request}"));
        }
    }
    let wanted = match read(&expected.join("warnings.json")) {
        Ok(text) => json(&text)?,
        Err(_) => Value::Array(Vec::new()),
    };
    let wanted: Vec<&str> = wanted
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|it| it["message"].as_str())
        .collect();
    if wanted != summary.warnings {
        return Err(format!(
            "expected warnings {wanted:?}, got {:?}",
            summary.warnings
        ));
    }
    Ok(())
}

/// The requests of all rollouts in order, or all messages, the most important first.
fn collect(
    case_dir: &Path,
    case: &Value,
    seed_field: SeedField,
) -> Result<(Vec<String>, ReadSummary), Vec<String>> {
    let (options, seed) = options(case_dir, case, seed_field).map_err(|message| vec![message])?;
    let one = |message: String| vec![message];
    let name = case["input"].as_str().unwrap_or("input.jsonl");
    let path = case_dir.join(name);
    let input = open(&path).map_err(|error| one(error.to_string()))?;
    let mut tasks = TaskReader::new(options);
    let mut requests = Vec::new();
    let read = tasks.read(&path.to_string_lossy(), input, |task| {
        let template = RequestTemplate::new(&task.request, seed)
            .map_err(|error| Failure(error.to_string()))?;
        let indices =
            task.first_rollout_index..task.first_rollout_index + i64::from(task.num_repeats);
        requests.extend(indices.map(|rollout_index| template.materialize(rollout_index, 0)));
        Ok::<(), Failure>(())
    });
    read.map_err(|failure| one(failure.0))?;
    let summary = tasks.finish().map_err(|errors| errors.messages())?;
    Ok((requests, summary))
}

struct Failure(String);

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        Self(error.to_string())
    }
}

fn options(
    case_dir: &Path,
    case: &Value,
    seed_field: SeedField,
) -> Result<(ReadOptions, Option<SeedField>), String> {
    let given = &case["options"];
    let repeats = match given.get("num_repeats") {
        Some(repeats) => {
            serde_json::from_value(repeats.clone()).map_err(|error| error.to_string())?
        }
        None => Repeats::default(),
    };
    let overrides = match &given["responses_create_params"] {
        Value::Object(fields) => Overrides::new(fields).map_err(|error| error.to_string())?,
        Value::Null => Overrides::default(),
        other => {
            return Err(format!(
                "responses_create_params must be an object, got {other}"
            ));
        }
    };
    let prompt = case["prompt_config"]
        .as_str()
        .map(|name| Prompt::load(&case_dir.join(name)));
    let seed = given["num_repeats_add_seed"]
        .as_bool()
        .unwrap_or(false)
        .then_some(seed_field);
    let options = ReadOptions {
        agent_name: given["agent_name"].as_str().map(str::to_owned),
        limit: limit(&given["limit"]),
        repeats,
        seed,
        overrides,
        prompt: prompt.transpose().map_err(|error| error.to_string())?,
    };
    Ok((options, seed))
}

/// A number in any of the spellings that a configuration file allows.
fn limit(given: &Value) -> Option<i64> {
    let text = given.as_str().and_then(|text| text.trim().parse().ok());
    given
        .as_i64()
        .or(text)
        .or(given.as_f64().map(|number| number as i64))
}

fn check_error(case_dir: &Path, expected: &Path, messages: &[String]) -> Result<(), String> {
    let error = json(&read(&expected.join("error.json"))?)?;
    let in_place = |key: &str| {
        let text = error[key].as_str().unwrap_or_default();
        text.replace("{CASE_DIR}", &case_dir.to_string_lossy())
    };
    let first = messages.first().map(String::as_str).unwrap_or_default();
    let compare = error["compare"].as_str().unwrap_or_default();
    let (wanted, same) = match compare {
        "exact" => {
            let wanted = in_place("message");
            let same = wanted == first || is_deliberate(&wanted, first);
            (wanted, same)
        }
        "prefix" => (
            in_place("fragment"),
            first.starts_with(&in_place("fragment")),
        ),
        "contains" => (in_place("fragment"), first.contains(&in_place("fragment"))),
        "any_error" => (String::new(), true),
        other => return Err(format!("unknown comparison {other}")),
    };
    if same {
        Ok(())
    } else {
        Err(format!("{compare}: expected {wanted:?}, got {first:?}"))
    }
}

fn is_deliberate(expected: &str, message: &str) -> bool {
    let difference = differences::between(expected, message);
    if let Some(difference) = difference {
        println!(
            "deliberate difference, as in {}: {}",
            difference.cases.join(", "),
            difference.reason
        );
    }
    difference.is_some()
}

/// JSON by value: whole numbers beyond 64 bits are floats, and the order of keys counts.
#[derive(Debug, PartialEq)]
enum Node {
    Word(String),
    Whole(i128),
    /// Its bits, so that a negative zero is not zero.
    Float(u64),
    Text(String),
    Array(Vec<Node>),
    Object(Vec<(String, Node)>),
}

impl Node {
    fn parse(text: &str) -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{error} in {text}");
        Ok(match text.as_bytes().first() {
            Some(b'n' | b't' | b'f') => Self::Word(text.to_owned()),
            Some(b'"') => Self::Text(
                unquote(text)
                    .ok_or_else(|| failed(&"bad string"))?
                    .into_owned(),
            ),
            Some(b'[') => {
                let items: Vec<&RawValue> =
                    serde_json::from_str(text).map_err(|error| failed(&error))?;
                Self::Array(
                    items
                        .iter()
                        .map(|item| Self::parse(item.get()))
                        .collect::<Result<_, _>>()?,
                )
            }
            Some(b'{') => {
                let object = Object::parse(text).map_err(|error| failed(&error))?;
                let fields = object
                    .iter()
                    .map(|(name, _, value)| Ok((name.to_owned(), Self::parse(value)?)));
                Self::Object(fields.collect::<Result<_, String>>()?)
            }
            _ => match text.parse::<i128>() {
                Ok(whole) if i64::try_from(whole).is_ok() || u64::try_from(whole).is_ok() => {
                    Self::Whole(whole)
                }
                _ => Self::Float(
                    text.parse::<f64>()
                        .map_err(|error| failed(&error))?
                        .to_bits(),
                ),
            },
        })
    }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}
