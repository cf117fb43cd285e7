//! The simulated model: [`Model`] serves it as OpenAI's and vLLM's APIs do.

mod arguments;
mod asked;
mod chat;
mod completions;
mod conversation;
mod cut;
mod policy;
mod question;
mod responses;
mod service;
mod tool;
mod vocabulary;

pub(super) use conversation::{Item, final_text};
pub(super) use service::Model;
