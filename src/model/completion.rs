//! What the answers of Chat Completions and of Completions have in common.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::retry::{Failure, FailureClass};
use crate::turn::Posted;

/// How vLLM writes a token as text where it is asked for `return_tokens_as_token_ids`.
const TOKEN_ID: &str = "token_id:";

/// An answer, with its choices of kind `C`.
#[derive(Debug, Deserialize)]
pub(super) struct Completion<C> {
    choices: Vec<C>,
    usage: Option<Usage>,
    worker: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
struct Usage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
}

/// Why a generation ended.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct FinishReason<'a>(#[serde(borrow)] Option<Cow<'a, str>>);

/// The first choice of an answer, and what is said of it.
#[derive(Debug)]
pub(super) struct FirstChoice<C> {
    pub(super) choice: C,
    pub(super) output_tokens: Option<u64>,
    pub(super) worker: Option<String>,
}

impl<'a, C: Deserialize<'a>> Completion<C> {
    /// Takes the first choice of an answer; its tokens are noted in the row of the call.
    pub(super) fn read(posted: &'a Posted) -> Result<FirstChoice<C>, Failure> {
        let answer: Self = serde_json::from_slice(&posted.body).map_err(|source| {
            let why = format!("the answer is no completion ({source}){}", posted.quote());
            posted.refuse(FailureClass::Data, &why)
        })?;
        let usage = answer.usage.unwrap_or_default();
        posted
            .turn
            .used(usage.prompt_tokens, usage.completion_tokens);
        let Some(choice) = answer.choices.into_iter().next() else {
            let why = format!("the answer has no choices{}", posted.quote());
            return Err(posted.refuse(FailureClass::Data, &why));
        };
        Ok(FirstChoice {
            choice,
            output_tokens: usage.completion_tokens,
            worker: answer.worker.and_then(|worker| match worker {
                Value::String(name) => Some(name),
                Value::Number(number) => Some(number.to_string()),
                _ => None,
            }),
        })
    }
}

impl FinishReason<'_> {
    /// The generation hit its length limit.
    ///
    /// # Errors
    /// The server gave it up.
    pub(super) fn is_length(&self, posted: &Posted) -> Result<bool, Failure> {
        match self.0.as_deref() {
            Some("abort") => {
                let why = "the server gave the generation up (finish_reason: abort)";
                Err(posted.refuse(FailureClass::Infra, why))
            }
            reason => Ok(reason == Some("length")),
        }
    }
}

/// The number that a token's text stands for, as vLLM writes it: `token_id:123`.
pub(super) fn token_id(text: &str) -> Option<u32> {
    text.strip_prefix(TOKEN_ID)?.parse().ok()
}

/// The numbers that a list of tokens' texts stands for, if every one stands for one.
pub(super) fn token_ids(texts: &RawValue) -> Option<Vec<u32>> {
    let texts: Vec<Cow<str>> = serde_json::from_str(texts.get()).ok()?;
    texts.iter().map(|text| token_id(text)).collect()
}
