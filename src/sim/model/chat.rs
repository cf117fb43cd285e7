//! `POST /v1/chat/completions`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::super::answer::CREATED_AT;
use super::super::profile::Profile;
use super::super::service::Rejected;
use super::conversation::{Conversation, Item};
use super::cut::Stop;
use super::policy::Prompt;
use super::service::{room, unreadable, unsupported, written};
use super::tool::{Tool, ToolChoice};

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(default, borrow)]
    model: Option<Cow<'a, str>>,
    #[serde(borrow)]
    messages: Vec<Item<'a>>,
    #[serde(default, borrow)]
    tools: Option<Vec<Tool<'a>>>,
    #[serde(default)]
    tool_choice: ToolChoice,
    parallel_tool_calls: Option<bool>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    #[serde(default)]
    stop: Stop,
    seed: Option<i64>,
    n: Option<u64>,
    stream: Option<bool>,
}

#[derive(Serialize)]
struct Completion<'a> {
    id: String,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: [Choice<'a>; 1],
    usage: Usage,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u64,
    message: Message<'a>,
    finish_reason: &'static str,
    stop_reason: Option<&'a str>,
    logprobs: Option<()>,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: Option<&'a str>,
    refusal: Option<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall<'a>>,
}

#[derive(Serialize)]
struct ToolCall<'a> {
    id: &'a str,
    r#type: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    arguments: &'a str,
}

/// What a request took.
#[derive(Serialize)]
pub(super) struct Usage {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub total_tokens: u64,
}

/// Answers a request.
pub(super) fn answer(body: &str, profile: &Profile) -> Result<Vec<u8>, Rejected> {
    let request: Request = serde_json::from_str(body).map_err(unreadable)?;
    if request.stream == Some(true) {
        return Err(unsupported("streams"));
    }
    if request.n.is_some_and(|n| n != 1) {
        return Err(unsupported("second choice: ask again with another seed"));
    }
    let conversation = Conversation::read(&request.messages, "");
    let tools = request.tools.filter(|_| request.tool_choice.allows());
    let prompt = Prompt {
        start: conversation.start,
        digest: conversation.digest,
        turns: conversation.turns,
        tools: tools.as_deref().unwrap_or_default(),
        parallel: request.parallel_tool_calls.unwrap_or(true),
        seed: request.seed.map(i64::cast_unsigned),
    };
    let mut said = prompt.said(profile);
    let most = request.max_completion_tokens.or(request.max_tokens);
    let most = room(profile, conversation.tokens, most)?;
    let end = said.limit(&request.stop, most);
    let calls = said.calls.iter().map(|call| ToolCall {
        id: &call.id,
        r#type: "function",
        function: Function {
            name: &call.name,
            arguments: &call.arguments,
        },
    });
    let (tool_calls, completion_tokens): (Vec<ToolCall>, u64) = (calls.collect(), said.tokens());
    let makes_calls = !tool_calls.is_empty();
    written(&Completion {
        id: format!("chatcmpl-{:016x}", said.id),
        object: "chat.completion",
        created: CREATED_AT as u64,
        model: request.model.as_deref().unwrap_or("rollstream-sim"),
        choices: [Choice {
            index: 0,
            message: Message {
                role: "assistant",
                content: (!makes_calls).then_some(&said.text),
                refusal: None,
                reasoning_content: said.reasoning.as_deref(),
                tool_calls,
            },
            finish_reason: if makes_calls {
                "tool_calls"
            } else {
                end.reason()
            },
            stop_reason: end.stop_string(),
            logprobs: None,
        }],
        usage: Usage {
            prompt_tokens: conversation.tokens,
            completion_tokens,
            total_tokens: conversation.tokens + completion_tokens,
        },
    })
}
