use async_trait::async_trait;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

use super::completion::{Completion, FinishReason, token_ids};
use super::request_body::RequestBody;
use super::{Generation, GenerationRequest, Message, ModelClient, Policy};
use crate::failure::{Failure, FailureClass};
use crate::turn::{Posted, TurnLog};

/// Path of Completions below a server's address.
pub const COMPLETIONS: &str = "v1/completions";

/// Fields of a request that make its tokens exact. `sampling` does not change them.
const EXACT: [(&str, bool); 3] = [
    ("return_token_ids", true),
    // Older versions of vLLM know only this one.
    ("return_tokens_as_token_ids", true),
    ("add_special_tokens", false),
];

/// A model behind Completions of vLLM or SGLang: tokens go there, and tokens with their
/// log-probabilities come back. The prompt is the tokens of all messages, one after the other, so
/// what the model saw is what the log says.
#[derive(Debug)]
pub struct CompletionsPolicy {
    client: ModelClient,
}

impl CompletionsPolicy {
    /// The model that `client` asks at [`COMPLETIONS`].
    pub fn new(client: ModelClient) -> Self {
        Self { client }
    }
}

#[derive(Deserialize)]
struct Choice<'a> {
    text: String,
    #[serde(borrow)]
    finish_reason: FinishReason<'a>,
    token_ids: Option<Vec<u32>>,
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(borrow)]
    logprobs: Option<Logprobs<'a>>,
    meta_info: Option<MetaInfo>,
}

#[derive(Deserialize)]
struct Logprobs<'a> {
    #[serde(borrow)]
    tokens: Option<&'a RawValue>,
    token_logprobs: Option<Vec<Option<f64>>>,
}

/// SGLang's own account: log-probability, number and text of each token.
#[derive(Deserialize)]
struct MetaInfo {
    output_token_logprobs: Option<Vec<(Option<f64>, u32, IgnoredAny)>>,
}

/// The tokens of the whole conversation.
fn prompt<'a>(request: &GenerationRequest<'a>, log: &TurnLog) -> Result<Vec<&'a [u32]>, Failure> {
    let ids = |(position, message): (usize, &'a Message)| {
        message.token_ids.as_deref().ok_or_else(|| {
            let why = format!(
                "rollout {}, turn {}: message {position} (role '{}') has no token ids, which \
                 /v1/completions is asked with; give the agent the model's tokenizer",
                log.key(),
                request.turn,
                message.role
            );
            Failure::new(FailureClass::Data, why)
        })
    };
    request.messages.iter().enumerate().map(ids).collect()
}

impl Choice<'_> {
    /// The tokens, and their log-probabilities where all are known.
    fn tokens(&mut self, posted: &Posted) -> Result<(Vec<u32>, Option<Vec<f64>>), Failure> {
        let meta = self.meta_info.take();
        let meta = meta.and_then(|meta| meta.output_token_logprobs);
        let logprobs = self.logprobs.as_ref();
        let ids = self
            .token_ids
            .take()
            .or_else(|| token_ids(logprobs?.tokens?))
            .or_else(|| Some(meta.as_ref()?.iter().map(|(_, id, _)| *id).collect()));
        let Some(ids) = ids else {
            let why = "the answer has no token ids; use a server of vLLM or SGLang that knows \
                       return_token_ids, or model_api = \"chat-completions\"";
            return Err(posted.refuse(FailureClass::Data, why));
        };
        let own = self.logprobs.take();
        let own = own.and_then(|logprobs| logprobs.token_logprobs);
        let logprobs = own.or_else(|| {
            let meta = meta?.into_iter();
            Some(meta.map(|(logprob, _, _)| logprob).collect())
        });
        if let Some(logprobs) = &logprobs
            && logprobs.len() != ids.len()
        {
            let (logprobs, ids) = (logprobs.len(), ids.len());
            let why = format!("the answer has {logprobs} log-probabilities of {ids} tokens");
            return Err(posted.refuse(FailureClass::Data, &why));
        }
        // A list in which one is null is of no use to a trainer, and could not be read again.
        Ok((ids, logprobs.and_then(|known| known.into_iter().collect())))
    }

    /// Nothing happened to the prompt on its way into the model, as far as the server says.
    fn check_prompt(&self, prompt: &[&[u32]], posted: &Posted) -> Result<(), Failure> {
        let Some(seen) = &self.prompt_token_ids else {
            return Ok(());
        };
        if prompt.iter().copied().flatten().eq(seen) {
            return Ok(());
        }
        let sent: usize = prompt.iter().map(|ids| ids.len()).sum();
        let why = format!(
            "the model did not see the tokens that were sent: {sent} were sent, and \
             prompt_token_ids has {}",
            seen.len()
        );
        Err(posted.refuse(FailureClass::Data, &why))
    }
}

#[async_trait]
impl Policy for CompletionsPolicy {
    async fn generate(
        &self,
        request: GenerationRequest<'_>,
        log: &TurnLog,
    ) -> Result<Generation, Failure> {
        let prompt = prompt(&request, log)?;
        let mut body = RequestBody::new(self.client.name())?;
        body.list("prompt", prompt.iter().copied().flatten())?;
        let logprobs = request.sampling.get("logprobs").and_then(Value::as_u64);
        let exact = EXACT.iter().map(|(name, _)| *name);
        let own: Vec<&str> = exact.chain(["prompt", "logprobs"]).collect();
        body.sampling(request.sampling, request.stop_strings, &own)?;
        for (name, value) in EXACT {
            body.field(name, &value)?;
        }
        body.field("logprobs", &logprobs.unwrap_or(0))?;
        let posted = self
            .client
            .post(request.turn, body.finish(), None, log, None)
            .await?;
        let answer = Completion::<Choice>::read(&posted)?;
        let mut choice = answer.choice;
        let truncated = choice.finish_reason.is_length(&posted)?;
        choice.check_prompt(&prompt, &posted)?;
        let (token_ids, logprobs) = choice.tokens(&posted)?;
        Ok(Generation {
            text: choice.text,
            num_tokens: Some(token_ids.len() as u64),
            token_ids: Some(token_ids),
            logprobs,
            truncated,
            worker: answer.worker,
        })
    }

    fn address(&self) -> String {
        self.client.address()
    }
}
