//! Language models: a [`Policy`] generates the next [`Message`] of a conversation, a [`Responder`] continues one of
//! OpenAI's Responses.
//!
//! [`ChatPolicy`], [`CompletionsPolicy`] and [`ResponsesModel`] ask a model over HTTP, through a [`ModelClient`] that knows
//! which of its [`Endpoints`] to ask. [`chat`] translates Responses to Chat Completions and back. A [`Tokenizer`] counts and
//! makes tokens. The agents that rollstream runs itself use all of it.

mod body;
pub mod chat;
mod chat_policy;
mod client;
mod completions_policy;
mod endpoints;
mod responses_model;
mod tokenizer;

use std::borrow::Cow;
use std::fmt::Debug;
use std::path::PathBuf;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::call::{CallLog, CookieJar};
use crate::retry::Failure;

pub use chat_policy::{CHAT_COMPLETIONS, ChatPolicy, SENT_OBSERVATION_ROLE};
pub use client::{ModelClient, ModelRetries};
pub use completions_policy::{COMPLETIONS, CompletionsPolicy};
pub use endpoints::{Chosen, Endpoints};
pub use responses_model::{RESPONSES, ResponsesModel};
pub use tokenizer::{
    BytesTokenizer, Encoding, HuggingFace, Tokenizer, WhitespaceTokenizer, tokenizer,
};

/// Generates the next message of a conversation.
#[async_trait]
pub trait Policy: Debug + Send + Sync {
    /// Generates one message. Every request is in `log`.
    ///
    /// # Errors
    /// No server of the model gave a whole answer.
    async fn generate(
        &self,
        request: GenerationRequest<'_>,
        log: &CallLog,
    ) -> Result<Generation, Failure>;

    /// The address without secrets, for people to read.
    fn address(&self) -> String;
}

/// The conversation to continue, and the sampling parameters.
#[derive(Debug, Clone, Copy)]
pub struct GenerationRequest<'a> {
    /// Number of the turn, from 1.
    pub turn: u32,
    /// The conversation so far.
    pub messages: &'a [Message],
    /// The sampling parameters: `temperature`, `top_p`, `max_tokens`, `seed` and the like, as
    /// in a request of Chat Completions.
    pub sampling: &'a Map<String, Value>,
    /// Texts that end the generation.
    pub stop_strings: Option<&'a [String]>,
}

/// A generation of a model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Generation {
    /// The text.
    pub text: String,
    /// The tokens of the text, if the model returned them.
    pub token_ids: Option<Vec<u32>>,
    /// Log-probability of each token, where the model gave them.
    pub logprobs: Option<Vec<f64>>,
    /// The number of tokens, if the model returned it.
    pub num_tokens: Option<u64>,
    /// Whether the generation hit its length limit.
    pub truncated: bool,
    /// The worker that generated it, if the server names it.
    pub worker: Option<String>,
}

/// A model that continues a conversation of OpenAI's Responses.
#[async_trait]
pub trait Responder: Debug + Send + Sync {
    /// Asks for the next items. Every request is in `log`.
    ///
    /// # Errors
    /// No server of the model gave a whole answer that can be read.
    async fn respond(
        &self,
        request: ResponseRequest<'_>,
        cookies: &mut CookieJar,
        log: &CallLog,
    ) -> Result<ModelResponse, Failure>;

    /// The address without secrets, for people to read.
    fn address(&self) -> String;
}

/// A conversation to continue.
#[derive(Debug, Clone, Copy)]
pub struct ResponseRequest<'a> {
    /// Number of the turn, from 1.
    pub turn: u32,
    /// The request parameters of the task, except `input`.
    pub params: &'a Map<String, Value>,
    /// The items so far.
    pub input: &'a [Box<RawValue>],
}

/// The answer of a model.
#[derive(Debug, Clone)]
pub struct ModelResponse {
    /// The whole Responses object as JSON text.
    pub text: String,
    /// Its `output`.
    pub output: Vec<Box<RawValue>>,
    /// Its `usage`, if any.
    pub usage: Option<Map<String, Value>>,
    /// Whether `incomplete_details` is present and not null.
    pub is_incomplete: bool,
}

impl ModelResponse {
    /// Reads a Responses object; its items stay as they are written.
    ///
    /// # Errors
    /// The text is not a Responses object. The error says why.
    pub fn parse(text: String) -> Result<Self, String> {
        #[derive(serde::Deserialize)]
        struct ResponseFields {
            output: Vec<Box<RawValue>>,
            #[serde(default)]
            usage: Option<Map<String, Value>>,
            #[serde(default)]
            incomplete_details: Option<serde::de::IgnoredAny>,
        }
        let fields: ResponseFields =
            serde_json::from_str(&text).map_err(|source| source.to_string())?;
        Ok(Self {
            output: fields.output,
            usage: fields.usage,
            is_incomplete: fields.incomplete_details.is_some(),
            text,
        })
    }
}

/// Role of the messages of an environment.
pub const OBSERVATION_ROLE: &str = "environment";

/// A message of a multi-turn log.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `user`, `assistant`, `environment`, ...
    pub role: String,
    /// A text, or a list of parts.
    pub content: Value,
    /// The tokens, if they are known exactly. An observation that was cut has fewer tokens than
    /// its content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
    /// Log-probability of each token, where the model gave them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<f64>>,
    /// The number of tokens.
    #[serde(default)]
    pub token_count: u64,
    /// Whether a tool call stands in the text instead of being called, if that was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_invalid_tool_call: Option<bool>,
    /// Whether a thinking tag stands where none belongs, if that was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub has_malformed_thinking: Option<bool>,
    /// The experts that each token was routed to, by layer, if the model says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routed_experts: Option<Vec<Value>>,
}

impl Message {
    /// Creates a message of which only the text is known.
    pub fn text(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: Value::String(content.into()),
            ..Self::default()
        }
    }
}

/// Returns the texts of a message's content, part by part, without other parts such as images.
pub fn texts(content: &Value) -> Vec<&str> {
    match content {
        Value::String(text) => vec![text],
        Value::Array(parts) => parts.iter().filter_map(text_of_part).collect(),
        _ => Vec::new(),
    }
}

/// Returns the texts of a message's content as one text.
pub fn text_in(content: &Value) -> Cow<'_, str> {
    match content {
        Value::String(text) => Cow::Borrowed(text),
        _ => Cow::Owned(texts(content).concat()),
    }
}

/// Joins content whose parts are all text into one text; returns any other content unchanged.
pub fn joined(content: &Value) -> Value {
    let texts = match content {
        Value::Array(parts) => parts.iter().map(text_of_part).collect::<Option<String>>(),
        _ => None,
    };
    texts.map_or_else(|| content.clone(), Value::String)
}

fn text_of_part(part: &Value) -> Option<&str> {
    if let Value::String(text) = part {
        return Some(text);
    }
    let kind = part.get("type").and_then(Value::as_str);
    match kind {
        Some("text" | "input_text" | "output_text") | None => part.get("text")?.as_str(),
        Some(_) => None,
    }
}

/// The reason why a model or a tokenizer can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// No address is given.
    #[error("model '{model}' has no address; give one or several with model_url")]
    NoAddress {
        /// Name of the model.
        model: String,
    },
    /// An address can't be used.
    #[error("the address '{url}' of model '{model}' can't be used: {reason}")]
    Address {
        /// Name of the model.
        model: String,
        /// The address as given.
        url: String,
        /// Why not.
        reason: String,
    },
    /// A tokenizer could not be read.
    #[error(
        "the tokenizer {} can't be used: {reason}; give a tokenizer.json of Hugging Face, its directory, \
         'whitespace' or 'bytes'",
        path.display()
    )]
    Tokenizer {
        /// The file that was looked for.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parts_are_joined_where_all_are_text() {
        let texts =
            json!([{"type": "input_text", "text": "a "}, {"type": "output_text", "text": "b"}]);
        assert_eq!(joined(&texts), "a b");
        let image =
            json!([{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "u"}]);
        assert_eq!(joined(&image), image);
        assert_eq!(text_in(&image), "a");
        assert_eq!(text_in(&json!("x")), "x");
        assert_eq!(text_in(&Value::Null), "");
    }
}
