//! Language models: [`Policy`] generates the next [`Message`] of a conversation.

mod message;
mod policy;

pub use message::Message;
pub use policy::{Generation, GenerationRequest, Policy};
