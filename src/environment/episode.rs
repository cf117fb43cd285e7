//! What servers that know one episode at a time are told: the row, and what the model said as a
//! response of the Responses API.

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream;
use serde::Serialize;
use serde_json::{Map, Value};

use super::{Step, StepResult, Stepped};
use crate::model::Message;
use crate::retry::{Failure, FailureClass};

/// Steps of a batch that are taken at the same time.
const AT_ONCE: usize = 256;

const ASSISTANT: &str = "assistant";

/// Waits for the steps of a batch, many at the same time. Each may fail for itself.
pub(super) async fn each(steps: Vec<BoxFuture<'_, Result<StepResult, Failure>>>) -> Stepped {
    Ok(stream::iter(steps).buffered(AT_ONCE).collect().await)
}

/// The row as it is sent.
pub(super) fn row(row: &Value) -> Result<Bytes, Failure> {
    text(row)
}

/// The row with what the model said: in the last turn, or in all of them.
pub(super) fn row_with_response(step: Step<'_>, turns: Said) -> Result<Bytes, Failure> {
    let none = Map::new();
    let row = step.row.as_object().unwrap_or(&none);
    let params = row
        .get("responses_create_params")
        .and_then(Value::as_object)
        .unwrap_or(&none);
    let given = |name: &str| params.get(name).filter(|value| !value.is_null());
    let mut said: Vec<&Message> = step
        .messages
        .iter()
        .rev()
        .filter(|message| message.role == ASSISTANT)
        .take(match turns {
            Said::Last => 1,
            Said::All => step.turn as usize,
        })
        .collect();
    said.reverse();
    let output = said.into_iter().enumerate();
    let response = Response {
        id: format!("resp_{}", step.turn),
        created_at: 0,
        model: given("model").and_then(Value::as_str).unwrap_or_default(),
        object: "response",
        output: output.map(|(at, message)| item(at, message)).collect(),
        parallel_tool_calls: true,
        tool_choice: "auto",
        tools: [],
    };
    text(&RowWithResponse {
        row: row.iter().filter(|(name, _)| *name != "response").collect(),
        response,
    })
}

/// What of a conversation is sent.
#[derive(Debug, Clone, Copy)]
pub(super) enum Said {
    /// The last message of the model.
    Last,
    /// Its message of every turn.
    All,
}

#[derive(Serialize)]
struct RowWithResponse<'a> {
    #[serde(flatten)]
    row: indexmap::IndexMap<&'a String, &'a Value>,
    response: Response<'a>,
}

/// A response, with the fields that NeMo Gym wants to see.
#[derive(Serialize)]
struct Response<'a> {
    id: String,
    created_at: u64,
    model: &'a str,
    object: &'static str,
    output: Vec<Item<'a>>,
    parallel_tool_calls: bool,
    tool_choice: &'static str,
    tools: [(); 0],
}

#[derive(Serialize)]
struct Item<'a> {
    id: String,
    content: Vec<Part<'a>>,
    role: &'static str,
    status: &'static str,
    r#type: &'static str,
}

#[derive(Serialize)]
struct Part<'a> {
    annotations: [(); 0],
    text: &'a str,
    r#type: &'static str,
}

fn item(at: usize, message: &Message) -> Item<'_> {
    let texts: Vec<&str> = match &message.content {
        Value::String(text) => vec![text],
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part.get("text")?.as_str())
            .collect(),
        _ => Vec::new(),
    };
    let parts = texts.into_iter().map(|text| Part {
        annotations: [],
        text,
        r#type: "output_text",
    });
    Item {
        id: format!("msg_{at}"),
        content: parts.collect(),
        role: ASSISTANT,
        status: "completed",
        r#type: "message",
    }
}

fn text(value: &impl Serialize) -> Result<Bytes, Failure> {
    let text = serde_json::to_vec(value).map_err(|source| {
        let why = format!("a row could not be written as JSON: {source}");
        Failure::new(FailureClass::Data, why)
    })?;
    Ok(text.into())
}
