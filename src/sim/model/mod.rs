//! The simulated model: [`Model`] serves it as OpenAI's and vLLM's APIs do. Used by the servers of the simulation.

mod completions;
mod conversation;
mod policy;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use self::conversation::{Conversation, items, text};
pub(super) use self::conversation::{Item, final_text};
use self::policy::{End, Prompt, Said, Stop, Tool};
use super::agent::CREATED_AT;
use super::plan::Profile;
use super::server::service::{Answer, Call, Rejected, Service};

const MODELS: &[u8] = br#"{"object":"list","data":[{"id":"rollstream-sim","object":"model","created":1767225600,"owned_by":"rollstream"}]}"#;

/// The model of an answer to a request that names none.
const MODEL_NAME: &str = "rollstream-sim";

/// A model server: `/v1/responses`, `/v1/chat/completions`, `/v1/completions` and `/v1/models`. What
/// the model says is a function of the conversation and the seed.
#[derive(Debug)]
pub(in crate::sim) struct Model;

impl Service for Model {
    fn get(&self, path: &str) -> Option<Bytes> {
        (path == "/v1/models").then_some(Bytes::from_static(MODELS))
    }

    fn post(&self, call: &Call, profile: &Profile) -> Result<Answer, Rejected> {
        let body = match call.path {
            "/v1/responses" => Generated::by(call.body, profile)?.response(),
            "/v1/chat/completions" => Generated::by(call.body, profile)?.chat(),
            "/v1/completions" => completions::answer(call.body, profile)?,
            _ => return Err(Rejected::not_found()),
        };
        Ok(body.into())
    }
}

/// A request to `/v1/responses` or `/v1/chat/completions`.
#[derive(Deserialize)]
struct Request {
    model: Option<String>,
    #[serde(alias = "input", deserialize_with = "items")]
    messages: Vec<Item>,
    #[serde(default, deserialize_with = "text")]
    instructions: String,
    tools: Option<Vec<Tool>>,
    #[serde(default)]
    tool_choice: Value,
    parallel_tool_calls: Option<bool>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    max_output_tokens: Option<u64>,
    #[serde(default)]
    stop: Stop,
    seed: Option<i64>,
    #[serde(default)]
    metadata: Value,
    n: Option<u64>,
    stream: Option<bool>,
}

impl Request {
    /// Returns the seed of the request, or the one in `metadata.extra_body` (JSON text), since the Responses API lacks
    /// a field for it.
    fn seed(&self) -> Option<i64> {
        self.seed.or_else(|| {
            let body = self.metadata["extra_body"].as_str()?;
            let body: Value = serde_json::from_str(body).ok()?;
            body["seed"].as_i64()
        })
    }
}

/// What the model says to a request.
struct Generated {
    request: Request,
    prompt_tokens: u64,
    said: Said,
    end: End,
}

impl Generated {
    fn by(body: &str, profile: &Profile) -> Result<Self, Rejected> {
        let request: Request = serde_json::from_str(body).map_err(unreadable)?;
        check_choices(request.stream, request.n)?;
        let conversation = Conversation::read(&request.messages, &request.instructions);
        let tools = request.tools.as_deref().unwrap_or_default();
        let prompt = Prompt {
            conversation,
            tools: if request.tool_choice == "none" {
                &[]
            } else {
                tools
            },
            parallel: request.parallel_tool_calls.unwrap_or(true),
            seed: request.seed().map(i64::cast_unsigned),
        };
        let mut said = prompt.said(profile);
        let most = request.max_output_tokens.or(request.max_completion_tokens);
        let most = remaining_context(profile, conversation.tokens, most.or(request.max_tokens))?;
        let end = said.limit(&request.stop, most);
        Ok(Self {
            prompt_tokens: conversation.tokens,
            request,
            said,
            end,
        })
    }

    fn model(&self) -> &str {
        self.request.model.as_deref().unwrap_or(MODEL_NAME)
    }

    /// Returns the answer of `/v1/chat/completions`.
    fn chat(&self) -> Value {
        let said = &self.said;
        let calls_tools = !said.calls.is_empty();
        let mut message = json!({
            "role": "assistant",
            "content": (!calls_tools).then_some(&said.text),
            "refusal": null,
        });
        if let Some(reasoning) = &said.reasoning {
            message["reasoning_content"] = json!(reasoning);
        }
        if calls_tools {
            let calls = said.calls.iter().map(|call| {
                let function = json!({"name": call.name, "arguments": call.arguments});
                json!({"id": call.id, "type": "function", "function": function})
            });
            message["tool_calls"] = calls.collect();
        }
        let reason = if calls_tools {
            "tool_calls"
        } else {
            self.end.reason()
        };
        json!({
            "id": format!("chatcmpl-{:016x}", said.id),
            "object": "chat.completion",
            "created": CREATED_AT as u64,
            "model": self.model(),
            "choices": [{
                "index": 0,
                "message": message,
                "finish_reason": reason,
                "stop_reason": self.end.stop_string(),
                "logprobs": null,
            }],
            "usage": usage(self.prompt_tokens, said.tokens()),
        })
    }

    /// Returns the answer of `/v1/responses`.
    fn response(&self) -> Value {
        let said = &self.said;
        let id = said.id;
        let is_cut = self.end == End::Length;
        let status = if is_cut { "incomplete" } else { "completed" };
        let mut output = Vec::with_capacity(said.calls.len() + 2);
        output.extend(said.reasoning.as_ref().map(|text| {
            let summary = json!([{"type": "summary_text", "text": text}]);
            json!({"type": "reasoning", "id": format!("rs_{id:016x}"), "summary": summary})
        }));
        if said.calls.is_empty() {
            output.push(json!({
                "type": "message",
                "id": format!("msg_{id:016x}"),
                "role": "assistant",
                "status": status,
                "content": [{"type": "output_text", "text": said.text, "annotations": []}],
            }));
        }
        output.extend(said.calls.iter().enumerate().map(|(number, call)| {
            json!({
                "type": "function_call",
                "id": format!("fc_{id:016x}_{number}"),
                "call_id": call.id,
                "name": call.name,
                "arguments": call.arguments,
                "status": "completed",
            })
        }));
        let output_tokens = said.tokens();
        json!({
            "id": format!("resp_{id:016x}"),
            "created_at": CREATED_AT,
            "model": self.model(),
            "object": "response",
            "status": status,
            "error": null,
            "incomplete_details": is_cut.then(|| json!({"reason": "max_output_tokens"})),
            "output": output,
            "parallel_tool_calls": self.request.parallel_tool_calls.unwrap_or(true),
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": self.prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": output_tokens,
                "output_tokens_details": {"reasoning_tokens": said.reasoning_tokens()},
                "total_tokens": self.prompt_tokens + output_tokens,
            },
        })
    }
}

/// Returns the `usage` of a chat or a completion.
fn usage(prompt_tokens: u64, completion_tokens: u64) -> Value {
    json!({
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    })
}

/// Returns the rejection of a request that cannot be read.
fn unreadable(error: serde_json::Error) -> Rejected {
    Rejected::openai(format!("the request cannot be read: {error}"), None)
}

/// Checks that a request wants neither a stream nor several choices.
fn check_choices(stream: Option<bool>, n: Option<u64>) -> Result<(), Rejected> {
    let missing = match (stream, n) {
        (Some(true), _) => "streams",
        (_, None | Some(1)) => return Ok(()),
        _ => "second choice: ask again with another seed",
    };
    Err(Rejected::openai(
        format!("the simulated model has no {missing}"),
        None,
    ))
}

/// Returns the token limit of an answer: `most`, or what the context leaves after the prompt.
///
/// # Errors
/// The prompt and `most` do not fit into the context.
fn remaining_context(
    profile: &Profile,
    prompt_tokens: u64,
    most: Option<u64>,
) -> Result<Option<u64>, Rejected> {
    let Some(window) = profile.context_window else {
        return Ok(most);
    };
    let asked = prompt_tokens.saturating_add(most.unwrap_or(1));
    if asked > window {
        let message = format!(
            "This model's maximum context length is {window} tokens. However, you requested {asked} tokens \
             ({prompt_tokens} of them in the prompt). Please reduce the length of the prompt."
        );
        return Err(Rejected::openai(message, Some("context_length_exceeded")));
    }
    Ok(Some(most.unwrap_or(window - prompt_tokens)))
}
