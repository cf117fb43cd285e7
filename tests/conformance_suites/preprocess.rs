//! Suite `preprocess`: from input lines to the requests of all rollouts.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rollstream::config::{Repeats, Routing, SeedField, Settings};
use rollstream::gym::GymRules;
use rollstream::json::{Object, unquote};
use rollstream::read::{Overrides, Prompt, ReadError, ReadOptions, TaskReader, open};
use rollstream::request::RequestTemplate;
use rollstream::servers::Servers;
use serde_json::Value;
use serde_json::value::RawValue;

use super::case::Case;
use super::differences;

/// Where the expectations of 0.5 are if the seed goes elsewhere than by default.
const SEED_IN_PARAMS: &str = "expected_seed_in_params";

/// Runs a case, in each variant that it has expectations for.
pub fn run(case: &Case) -> Result<(), String> {
    check(case, &case.expected, SeedField::MetadataExtraBody)?;
    let other = case.directory.join(SEED_IN_PARAMS);
    if other.exists() && case.rules == GymRules::of(None) {
        check(case, &other, SeedField::ResponsesCreateParams)
            .map_err(|error| format!("{SEED_IN_PARAMS}: {error}"))?;
    }
    Ok(())
}

fn check(case: &Case, expected: &Path, seed_field: SeedField) -> Result<(), String> {
    let read = materialize(case, None, seed_field);
    check_warnings(expected, read.warnings())?;
    if expected.join("error.json").exists() {
        return match read {
            Read::Refused { messages, .. } => check_error(&case.directory, expected, &messages),
            Read::Rows { requests, .. } => {
                Err(format!("expected an error, got {} rows", requests.len()))
            }
        };
    }
    check_rows(expected, read.rows()?)
}

/// Compares rows with those that are expected.
pub fn check_rows(expected: &Path, requests: &[String]) -> Result<(), String> {
    let text = read(&expected.join("materialized_inputs.jsonl"))?;
    let wanted: Vec<&str> = text.split('\n').filter(|line| !line.is_empty()).collect();
    if wanted.len() != requests.len() {
        return Err(format!(
            "expected {} rows, got {}",
            wanted.len(),
            requests.len()
        ));
    }
    for (row, (wanted, request)) in wanted.iter().zip(requests).enumerate() {
        if Node::parse(wanted)? != Node::parse(request)? {
            return Err(format!("row {row}:\nexpected {wanted}\ngot      {request}"));
        }
    }
    Ok(())
}

/// Compares warnings with those that are expected.
pub fn check_warnings(expected: &Path, warnings: &[String]) -> Result<(), String> {
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
    if wanted == warnings {
        Ok(())
    } else {
        Err(format!("expected warnings {wanted:?}, got {warnings:?}"))
    }
}

/// What becomes of the lines of an input.
pub enum Read {
    /// The requests of all rollouts, task by task.
    Rows {
        requests: Vec<String>,
        warnings: Vec<String>,
    },
    /// All messages, the most important first.
    Refused {
        messages: Vec<String>,
        warnings: Vec<String>,
    },
}

impl Read {
    fn refused(message: impl ToString) -> Self {
        Self::Refused {
            messages: vec![message.to_string()],
            warnings: Vec::new(),
        }
    }

    /// Warnings about the input, also of one that is refused.
    pub fn warnings(&self) -> &[String] {
        match self {
            Self::Rows { warnings, .. } | Self::Refused { warnings, .. } => warnings,
        }
    }

    /// The requests, which are expected.
    pub fn rows(&self) -> Result<&[String], String> {
        match self {
            Self::Rows { requests, .. } => Ok(requests),
            Self::Refused { messages, .. } => {
                Err(format!("unexpected error: {}", messages.join("\n")))
            }
        }
    }
}

/// Reads the input of a case. `servers` are those that rows may name.
pub fn materialize(case: &Case, servers: Option<Arc<Servers>>, seed_field: SeedField) -> Read {
    let (options, seed) = match options(case, seed_field) {
        Ok((options, seed)) => (ReadOptions { servers, ..options }, seed),
        Err(message) => return Read::refused(message),
    };
    let name = case.json["input"].as_str().unwrap_or("input.jsonl");
    let path = case.directory.join(name);
    let input = match open(&path) {
        Ok(input) => input,
        Err(error) => return Read::refused(error),
    };
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
    if let Err(failure) = read {
        return Read::refused(failure.0);
    }
    match tasks.finish() {
        Ok(summary) => Read::Rows {
            requests,
            warnings: summary.warnings,
        },
        Err(errors) => Read::Refused {
            messages: errors.messages(),
            warnings: errors.warnings().to_vec(),
        },
    }
}

struct Failure(String);

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        Self(error.to_string())
    }
}

fn options(case: &Case, seed_field: SeedField) -> Result<(ReadOptions, Option<SeedField>), String> {
    let given = &case.json["options"];
    let agent = given["agent_name"].as_str().map(str::to_owned);
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
    let prompt = case.json["prompt_config"]
        .as_str()
        .map(|name| Prompt::from_yaml(&Prompt::text(&case.directory.join(name))?));
    let seed = given["num_repeats_add_seed"]
        .as_bool()
        .unwrap_or(false)
        .then_some(seed_field);
    let routing = Routing::of(&routing_settings(given, agent.clone())?, case.rules);
    let options = ReadOptions {
        agent_name: agent,
        routing: routing.map_err(|error| error.to_string())?,
        servers: None,
        limit: limit(&given["limit"]),
        repeats,
        seed,
        overrides,
        prompt: prompt.transpose().map_err(|error| error.to_string())?,
        plain_questions: false,
    };
    Ok((options, seed))
}

/// The settings that decide where rows go.
fn routing_settings(given: &Value, agent: Option<String>) -> Result<Settings, String> {
    let given = given.as_object().into_iter().flatten();
    let given = given.filter(|(key, _)| Routing::keys().any(|known| known == *key));
    let given: serde_json::Map<_, _> = given
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let settings: Settings =
        serde_json::from_value(given.into()).map_err(|error| error.to_string())?;
    Ok(Settings { agent, ..settings })
}

/// A number in any of the spellings that a configuration file allows.
fn limit(given: &Value) -> Option<i64> {
    let text = given.as_str().and_then(|text| text.trim().parse().ok());
    given
        .as_i64()
        .or(text)
        .or(given.as_f64().map(|number| number as i64))
}

/// Compares the first message with the one that is expected.
pub fn check_error(case_dir: &Path, expected: &Path, messages: &[String]) -> Result<(), String> {
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
