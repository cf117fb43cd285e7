//! Language models: [`Policy`] generates the next [`Message`] of a conversation.

mod message;
mod policy;
mod responder;

pub use message::Message;
pub use policy::{Generation, GenerationRequest, Policy};
pub use responder::{ModelResponse, Responder, ResponseRequest};
