//! `POST /v1/responses`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::super::profile::Profile;
use super::super::service::Rejected;
use super::conversation::{Conversation, Input, Text};
use super::cut::{End, Stop};
use super::policy::Prompt;
use super::service::{room, unreadable, unsupported, written};
use super::tool::{Tool, ToolChoice};

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(default, borrow)]
    model: Option<Cow<'a, str>>,
    #[serde(borrow)]
    input: Input<'a>,
    #[serde(default, borrow)]
    instructions: Text<'a>,
    #[serde(default, borrow)]
    tools: Option<Vec<Tool<'a>>>,
    #[serde(default)]
    tool_choice: ToolChoice,
    parallel_tool_calls: Option<bool>,
    max_output_tokens: Option<u64>,
    #[serde(default)]
    stop: Stop,
    seed: Option<i64>,
    #[serde(default, borrow)]
    metadata: Option<&'a RawValue>,
    stream: Option<bool>,
}

#[derive(Serialize)]
struct Response<'a> {
    id: String,
    created_at: f64,
    model: &'a str,
    object: &'static str,
    status: &'static str,
    error: Option<()>,
    incomplete_details: Option<Incomplete>,
    output: Vec<Output>,
    parallel_tool_calls: bool,
    tool_choice: &'static str,
    tools: [(); 0],
    usage: Usage,
}

#[derive(Serialize)]
struct Incomplete {
    reason: &'static str,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Output {
    Reasoning {
        id: String,
        summary: [Piece; 1],
    },
    FunctionCall {
        id: String,
        call_id: String,
        name: String,
        arguments: String,
        status: &'static str,
    },
    Message {
        id: String,
        role: &'static str,
        status: &'static str,
        content: [Piece; 1],
    },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Piece {
    SummaryText { text: String },
    OutputText { text: String, annotations: [(); 0] },
}

#[derive(Serialize)]
struct Usage {
    input_tokens: u64,
    input_tokens_details: InputDetails,
    output_tokens: u64,
    output_tokens_details: OutputDetails,
    total_tokens: u64,
}

#[derive(Serialize)]
struct InputDetails {
    cached_tokens: u64,
}

#[derive(Serialize)]
struct OutputDetails {
    reasoning_tokens: u64,
}

/// Answers a request.
pub(super) fn answer(body: &str, profile: &Profile) -> Result<Vec<u8>, Rejected> {
    let request: Request = serde_json::from_str(body).map_err(unreadable)?;
    if request.stream == Some(true) {
        return Err(unsupported("streams"));
    }
    let seed = request.seed.or_else(|| seed_within(request.metadata?));
    let conversation = Conversation::read(&request.input.0, &request.instructions.0);
    let tools = request.tools.filter(|_| request.tool_choice.allows());
    let parallel = request.parallel_tool_calls.unwrap_or(true);
    let prompt = Prompt {
        start: conversation.start,
        digest: conversation.digest,
        turns: conversation.turns,
        tools: tools.as_deref().unwrap_or_default(),
        parallel,
        seed: seed.map(i64::cast_unsigned),
    };
    let mut said = prompt.said(profile);
    let most = room(profile, conversation.tokens, request.max_output_tokens)?;
    let end = said.limit(&request.stop, most);
    let is_cut = end == End::Length;
    let status = if is_cut { "incomplete" } else { "completed" };
    let (id, output_tokens) = (said.id, said.tokens());
    let reasoning_tokens = said.reasoning_tokens();
    let mut output = Vec::with_capacity(said.calls.len() + 2);
    output.extend(said.reasoning.map(|text| Output::Reasoning {
        id: format!("rs_{id:016x}"),
        summary: [Piece::SummaryText { text }],
    }));
    if said.calls.is_empty() {
        let text = said.text;
        let annotations = [];
        output.push(Output::Message {
            id: format!("msg_{id:016x}"),
            role: "assistant",
            status,
            content: [Piece::OutputText { text, annotations }],
        });
    }
    let calls = said.calls.into_iter().enumerate();
    output.extend(calls.map(|(n, call)| Output::FunctionCall {
        id: format!("fc_{id:016x}_{n}"),
        call_id: call.id,
        name: call.name,
        arguments: call.arguments,
        status: "completed",
    }));
    written(&Response {
        id: format!("resp_{id:016x}"),
        created_at: super::super::answer::CREATED_AT,
        model: request.model.as_deref().unwrap_or("rollstream-sim"),
        object: "response",
        status,
        error: None,
        incomplete_details: is_cut.then_some(Incomplete {
            reason: "max_output_tokens",
        }),
        output,
        parallel_tool_calls: parallel,
        tool_choice: "auto",
        tools: [],
        usage: Usage {
            input_tokens: conversation.tokens,
            input_tokens_details: InputDetails { cached_tokens: 0 },
            output_tokens,
            output_tokens_details: OutputDetails { reasoning_tokens },
            total_tokens: conversation.tokens + output_tokens,
        },
    })
}

/// The seed in `metadata.extra_body`, which is JSON text, as this API has no place for one.
fn seed_within(metadata: &RawValue) -> Option<i64> {
    let metadata: Value = serde_json::from_str(metadata.get()).ok()?;
    let body: Value = serde_json::from_str(metadata.get("extra_body")?.as_str()?).ok()?;
    body.get("seed")?.as_i64()
}
