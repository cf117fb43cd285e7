use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::completion::{Completion, FinishReason, token_id};
use super::request_body::RequestBody;
use super::{Generation, GenerationRequest, Message, ModelClient, OBSERVATION_ROLE, Policy};
use crate::failure::Failure;
use crate::turn::TurnLog;

/// What messages of an environment are sent as: servers of models know no role for them.
pub const SENT_OBSERVATION_ROLE: &str = "user";

/// Path of Chat Completions below a server's address.
pub const CHAT_COMPLETIONS: &str = "v1/chat/completions";

/// A model behind Chat Completions: texts go there, and texts come back.
#[derive(Debug)]
pub struct ChatPolicy {
    client: ModelClient,
}

impl ChatPolicy {
    /// The model that `client` asks at [`CHAT_COMPLETIONS`].
    pub fn new(client: ModelClient) -> Self {
        Self { client }
    }
}

/// A message as it is sent.
#[derive(Serialize)]
struct Sent<'a> {
    role: &'a str,
    content: &'a Value,
}

impl<'a> Sent<'a> {
    fn of(message: &'a Message) -> Self {
        let role = match message.role.as_str() {
            OBSERVATION_ROLE => SENT_OBSERVATION_ROLE,
            role => role,
        };
        Self {
            role,
            content: &message.content,
        }
    }
}

#[derive(Deserialize)]
struct Choice<'a> {
    message: Answered,
    #[serde(borrow)]
    finish_reason: FinishReason<'a>,
    logprobs: Option<Logprobs>,
    /// vLLM and SGLang, where `return_token_ids` is asked for.
    token_ids: Option<Vec<u32>>,
}

#[derive(Deserialize)]
struct Answered {
    content: Option<Content>,
    refusal: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
struct Part {
    text: Option<String>,
}

#[derive(Deserialize)]
struct Logprobs {
    content: Option<Vec<Token>>,
}

#[derive(Deserialize)]
struct Token {
    token: String,
    logprob: Option<f64>,
}

impl Answered {
    /// What it says; a refusal is what a model says that says nothing else.
    fn text(self) -> String {
        match self.content {
            Some(Content::Text(text)) => text,
            Some(Content::Parts(parts)) => parts.into_iter().filter_map(|part| part.text).collect(),
            None => self.refusal.unwrap_or_default(),
        }
    }
}

#[async_trait]
impl Policy for ChatPolicy {
    async fn generate(
        &self,
        request: GenerationRequest<'_>,
        log: &TurnLog,
    ) -> Result<Generation, Failure> {
        let mut body = RequestBody::new(self.client.name())?;
        body.list("messages", request.messages.iter().map(Sent::of))?;
        body.sampling(request.sampling, request.stop_strings, &["messages"])?;
        let posted = self
            .client
            .post(request.turn, body.finish(), None, log, None)
            .await?;
        let answer = Completion::<Choice>::read(&posted)?;
        let choice = answer.choice;
        let truncated = choice.finish_reason.is_length(&posted)?;
        let tokens = choice.logprobs.and_then(|logprobs| logprobs.content);
        let token_ids = choice.token_ids.or_else(|| {
            let tokens = tokens.as_ref()?.iter();
            tokens.map(|token| token_id(&token.token)).collect()
        });
        let logprobs: Option<Vec<f64>> =
            tokens.and_then(|tokens| tokens.iter().map(|token| token.logprob).collect());
        let count = token_ids.as_ref().map(Vec::len);
        Ok(Generation {
            text: choice.message.text(),
            num_tokens: answer.output_tokens.or(count.map(|count| count as u64)),
            // Those of other tokens than the ones that are known would mislead.
            logprobs: logprobs.filter(|logprobs| count.is_none_or(|count| count == logprobs.len())),
            token_ids,
            truncated,
            worker: answer.worker,
        })
    }

    fn address(&self) -> String {
        self.client.address()
    }
}
