use std::fmt::Debug;

use async_trait::async_trait;
use serde_json::{Map, Value};

use super::Message;
use crate::retry::Failure;
use crate::turn::TurnLog;

/// Who generates the next message of a conversation.
#[async_trait]
pub trait Policy: Debug + Send + Sync {
    /// Generates one message. Every request is in `log`.
    ///
    /// # Errors
    /// No server of the model gave a whole answer.
    async fn generate(
        &self,
        request: GenerationRequest<'_>,
        log: &TurnLog,
    ) -> Result<Generation, Failure>;

    /// Where it is, without secrets, for people to read.
    fn address(&self) -> String;
}

/// What is to be generated from.
#[derive(Debug, Clone, Copy)]
pub struct GenerationRequest<'a> {
    /// Number of the turn, from 1.
    pub turn: u32,
    /// The conversation so far.
    pub messages: &'a [Message],
    /// How it is sampled: `temperature`, `top_p`, `max_tokens`, `seed` and the like, as they stand
    /// in a request of Chat Completions.
    pub sampling: &'a Map<String, Value>,
    /// Texts that end the generation.
    pub stop_strings: Option<&'a [String]>,
}

/// What was generated.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Generation {
    /// The text.
    pub text: String,
    /// Its tokens, where the model gave them.
    pub token_ids: Option<Vec<u32>>,
    /// Log-probability of each token, where the model gave them.
    pub logprobs: Option<Vec<f64>>,
    /// Number of its tokens, where the model gave it.
    pub num_tokens: Option<u64>,
    /// It hit its length limit.
    pub truncated: bool,
    /// Who generated it, where the server has a name for that.
    pub worker: Option<String>,
}
