//! Language models: [`Policy`] generates the next [`Message`] of a conversation, [`Responder`] goes on
//! with one of OpenAI's Responses; [`chat`] says Responses in Chat Completions and back. [`Tokenizer`]
//! counts and makes tokens.

pub mod chat;
mod message;
mod policy;
mod responder;
mod tokenizer;

pub use message::Message;
pub use policy::{Generation, GenerationRequest, Policy};
pub use responder::{ModelResponse, Responder, ResponseRequest};
pub use tokenizer::{Encoding, Tokenizer, WhitespaceTokenizer};
