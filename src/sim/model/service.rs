use bytes::Bytes;
use hyper::StatusCode;

use super::super::call::Call;
use super::super::profile::Profile;
use super::super::service::{Answer, Rejected, Service};
use super::{chat, completions, responses};

const MODELS: &[u8] = br#"{"object":"list","data":[{"id":"rollstream-sim","object":"model","created":1767225600,"owned_by":"rollstream"}]}"#;

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
            "/v1/responses" => responses::answer(call.body, profile),
            "/v1/chat/completions" => chat::answer(call.body, profile),
            "/v1/completions" => completions::answer(call.body, profile),
            _ => Err(Rejected::detail(StatusCode::NOT_FOUND, "Not Found")),
        };
        body.map(Answer::from)
    }
}

/// A request that cannot be read.
pub(super) fn unreadable(error: serde_json::Error) -> Rejected {
    Rejected::openai(format!("the request cannot be read: {error}"), None)
}

/// Something that OpenAI's API can do and this model cannot.
pub(super) fn unsupported(what: &str) -> Rejected {
    Rejected::openai(format!("the simulated model has no {what}"), None)
}

/// What is left of the context for an answer to a prompt of so many tokens, of which the request
/// wants `most` at most.
pub(super) fn room(
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
    Ok(Some(window - prompt_tokens).map(|room| most.unwrap_or(room)))
}

/// Bytes of an answer.
pub(super) fn written(answer: &impl serde::Serialize) -> Result<Vec<u8>, Rejected> {
    serde_json::to_vec(answer)
        .map_err(|error| Rejected::detail(StatusCode::INTERNAL_SERVER_ERROR, error))
}
