//! OpenAI's Responses said in Chat Completions, and back.
//!
//! [`request_from_responses`] writes the body of a chat request for a conversation of Responses items, and
//! [`response_from_chat`] reads a chat answer as a Responses object. What Chat Completions has no words for is a
//! [`ConversionError`], never left out. Both follow NeMo Gym's `vllm_model` where Responses leaves a choice.

mod error;
mod items;
mod messages;
mod output;
mod parameters;
mod parts;
mod request;
mod response;
#[cfg(test)]
mod round_trip;
mod tokens;
mod tools;
mod usage;

pub use error::ConversionError;
pub use request::request_from_responses;
pub use response::response_from_chat;
