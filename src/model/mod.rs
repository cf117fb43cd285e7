//! Language models: [`Policy`] generates the next [`Message`] of a conversation, [`Responder`] goes on
//! with one of OpenAI's Responses. [`ChatPolicy`], [`CompletionsPolicy`] and [`ResponsesModel`] ask a
//! model over HTTP, through a [`ModelClient`] that knows which of its [`Endpoints`] to ask; [`chat`]
//! says Responses in Chat Completions and back. [`Tokenizer`] counts and makes tokens.

pub mod chat;
mod chat_policy;
mod client;
mod completion;
mod completions_policy;
mod endpoints;
mod error;
mod message;
mod policy;
mod request_body;
mod responder;
mod responses_model;
mod tokenizer;

pub use chat_policy::{CHAT_COMPLETIONS, ChatPolicy, SENT_OBSERVATION_ROLE};
pub use client::{ModelClient, ModelRetries};
pub use completions_policy::{COMPLETIONS, CompletionsPolicy};
pub use endpoints::{Chosen, Endpoints};
pub use error::ModelError;
pub use message::{Message, OBSERVATION_ROLE};
pub use policy::{Generation, GenerationRequest, Policy};
pub use responder::{ModelResponse, Responder, ResponseRequest};
pub use responses_model::{RESPONSES, ResponsesModel};
pub use tokenizer::{
    BytesTokenizer, Encoding, HuggingFace, Tokenizer, WhitespaceTokenizer, tokenizer,
};
