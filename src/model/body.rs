//! The parts of request and answer bodies that Chat Completions and Completions share.

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::call::Posted;
use crate::retry::{Failure, FailureClass};

/// Fields that would change the shape of the answer.
const NEVER_SENT: [&str; 2] = ["stream", "stream_options"];

/// A request to a model, written as text.
#[derive(Debug)]
pub(super) struct RequestBody(Vec<u8>);

impl RequestBody {
    /// Begins a request to a model, which is not named if `model` is empty.
    pub(super) fn new(model: &str) -> Result<Self, Failure> {
        let mut body = Self(vec![b'{']);
        if !model.is_empty() {
            body.field("model", model)?;
        }
        Ok(body)
    }

    /// Adds a field.
    pub(super) fn field(
        &mut self,
        name: &str,
        value: &(impl Serialize + ?Sized),
    ) -> Result<(), Failure> {
        self.name(name)?;
        self.value(value)
    }

    /// Adds a field that is a list.
    pub(super) fn list<T: Serialize>(
        &mut self,
        name: &str,
        items: impl Iterator<Item = T>,
    ) -> Result<(), Failure> {
        self.name(name)?;
        self.0.push(b'[');
        for (position, item) in items.enumerate() {
            if position > 0 {
                self.0.push(b',');
            }
            self.value(&item)?;
        }
        self.0.push(b']');
        Ok(())
    }

    /// Adds all fields but those in `own`, which the request has set or will set itself.
    pub(super) fn parameters(
        &mut self,
        parameters: &Map<String, Value>,
        own: &[&str],
    ) -> Result<(), Failure> {
        let is_own = |name: &str| own.contains(&name) || NEVER_SENT.contains(&name);
        for (name, value) in parameters.iter().filter(|(name, _)| !is_own(name)) {
            self.field(name, value)?;
        }
        Ok(())
    }

    /// Adds the sampling parameters: `sampling` without `own`, without the name of a model that has been
    /// named, and without `stop` if the turn has its own stop strings.
    pub(super) fn sampling(
        &mut self,
        sampling: &Map<String, Value>,
        stop: Option<&[String]>,
        own: &[&str],
    ) -> Result<(), Failure> {
        let named = (self.0.len() > 1).then_some("model");
        let stopped = stop.map(|_| "stop");
        let own: Vec<&str> = own.iter().copied().chain(named).chain(stopped).collect();
        self.parameters(sampling, &own)?;
        match stop {
            Some(stop) if !stop.is_empty() => self.field("stop", stop),
            _ => Ok(()),
        }
    }

    /// Closes the body and returns it.
    pub(super) fn finish(mut self) -> Bytes {
        self.0.push(b'}');
        self.0.into()
    }

    fn name(&mut self, name: &str) -> Result<(), Failure> {
        if self.0.len() > 1 {
            self.0.push(b',');
        }
        self.value(name)?;
        self.0.push(b':');
        Ok(())
    }

    fn value(&mut self, value: &(impl Serialize + ?Sized)) -> Result<(), Failure> {
        serde_json::to_writer(&mut self.0, value).map_err(|source| {
            let why = format!("a request to a model could not be written: {source}");
            Failure::new(FailureClass::Data, why)
        })
    }
}

/// The prefix with which vLLM writes a token as text if `return_tokens_as_token_ids` is set.
pub(super) const TOKEN_ID: &str = "token_id:";

/// An answer, with its choices of kind `C`.
#[derive(Debug, Deserialize)]
pub(super) struct CompletionAnswer<C> {
    choices: Vec<C>,
    usage: Option<CompletionUsage>,
    worker: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
struct CompletionUsage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
}

/// The reason why a generation ended.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct FinishReason<'a>(#[serde(borrow)] Option<Cow<'a, str>>);

/// The first choice of an answer, with the answer's data about it.
#[derive(Debug)]
pub(super) struct FirstChoice<C> {
    pub(super) choice: C,
    pub(super) output_tokens: Option<u64>,
    pub(super) worker: Option<String>,
}

impl<'a, C: Deserialize<'a>> CompletionAnswer<C> {
    /// Takes the first choice of an answer, and notes the token counts in the row of the call.
    pub(super) fn read(posted: &'a Posted) -> Result<FirstChoice<C>, Failure> {
        let answer: Self = serde_json::from_slice(&posted.body).map_err(|source| {
            let why = format!("the answer is no completion ({source}){}", posted.quote());
            posted.refuse(FailureClass::Data, &why)
        })?;
        let usage = answer.usage.unwrap_or_default();
        posted
            .open
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
    /// Returns whether the generation hit its length limit.
    ///
    /// # Errors
    /// The server aborted the generation.
    pub(super) fn is_length(&self, posted: &Posted) -> Result<bool, Failure> {
        match self.0.as_deref() {
            Some("abort") => {
                let why = "the server aborted the generation (finish_reason: abort)";
                Err(posted.refuse(FailureClass::Infra, why))
            }
            reason => Ok(reason == Some("length")),
        }
    }
}

/// Returns the number in a token's text as vLLM writes it: `token_id:123`.
pub(super) fn token_id(text: &str) -> Option<u32> {
    text.strip_prefix(TOKEN_ID)?.parse().ok()
}

/// Returns the numbers in a list of token texts, if every text has one.
pub(super) fn token_ids(texts: &RawValue) -> Option<Vec<u32>> {
    let texts: Vec<Cow<str>> = serde_json::from_str(texts.get()).ok()?;
    texts.iter().map(|text| token_id(text)).collect()
}
