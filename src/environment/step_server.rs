use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Environment, Sample, StepResult};
use crate::failure::{Failure, FailureClass};
use crate::model::Message;
use crate::turn::{OpenTurn, Post, Posted, Target, TurnCall, TurnEnd, TurnKind};

/// An environment that takes a step with a whole batch in one request: `POST {url}/step`. A step
/// changes what it knows, so none is repeated.
#[derive(Debug)]
pub struct StepServer {
    target: Target,
    name: Arc<str>,
    deadline: Option<Duration>,
}

impl StepServer {
    /// The environment of tasks of kind `name` below the address of `server`. `deadline` is the
    /// longest time of a step.
    pub fn new(name: impl Into<Arc<str>>, server: &Target, deadline: Option<Duration>) -> Self {
        Self {
            target: server.at("step"),
            name: name.into(),
            deadline,
        }
    }
}

#[derive(Serialize)]
struct Request<'a> {
    message_log_batch: Vec<Vec<Said<'a>>>,
    metadata: Vec<&'a Value>,
    rollout_ids: Vec<String>,
}

/// A message as an environment sees it.
#[derive(Serialize)]
struct Said<'a> {
    role: &'a str,
    content: &'a Value,
}

/// An answer, list by list, so that an error can name the one that it is in.
#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    observations: Option<&'a RawValue>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow)]
    next_stop_strings: Option<&'a RawValue>,
    #[serde(borrow)]
    rewards: Option<&'a RawValue>,
    #[serde(borrow)]
    terminateds: Option<&'a RawValue>,
    #[serde(borrow)]
    answers: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Observation {
    role: String,
    content: Value,
}

fn request(samples: &[Sample<'_>]) -> Result<Bytes, Failure> {
    let steps = || samples.iter().map(|sample| sample.step);
    let request = Request {
        message_log_batch: steps().map(|step| said(step.messages)).collect(),
        metadata: steps().map(|step| step.metadata).collect(),
        rollout_ids: samples
            .iter()
            .map(|sample| sample.log.key().to_string())
            .collect(),
    };
    let body = serde_json::to_vec(&request).map_err(|source| {
        let why = format!("a step could not be written as JSON: {source}");
        Failure::new(FailureClass::Data, why)
    })?;
    Ok(body.into())
}

fn said(messages: &[Message]) -> Vec<Said<'_>> {
    let said = messages.iter().map(|message| Said {
        role: &message.role,
        content: &message.content,
    });
    said.collect()
}

/// A list of an answer, with one entry for each sample.
fn list<'a, T: Deserialize<'a>>(
    name: &str,
    text: Option<&'a RawValue>,
    samples: usize,
) -> Result<Vec<T>, String> {
    let text = text.ok_or_else(|| format!("'{name}' is missing"))?;
    let list: Vec<T> =
        serde_json::from_str(text.get()).map_err(|source| format!("'{name}': {source}"))?;
    if list.len() == samples {
        return Ok(list);
    }
    let entries = list.len();
    Err(format!(
        "'{name}' has {entries} entries for {samples} samples"
    ))
}

/// A list that can be left out, or be null.
fn optional<'a, T: Deserialize<'a>>(
    name: &str,
    text: Option<&'a RawValue>,
    samples: usize,
) -> Result<Vec<Option<T>>, String> {
    match text {
        Some(text) => list(name, Some(text), samples),
        None => Ok((0..samples).map(|_| None).collect()),
    }
}

fn results(body: &[u8], samples: usize) -> Result<Vec<StepResult>, String> {
    let answer: Answer =
        serde_json::from_slice(body).map_err(|source| format!("not a JSON object: {source}"))?;
    let observations: Vec<Observation> = list("observations", answer.observations, samples)?;
    let metadata = optional("metadata", answer.metadata, samples)?;
    let stop_strings = optional("next_stop_strings", answer.next_stop_strings, samples)?;
    let rewards: Vec<f64> = list("rewards", answer.rewards, samples)?;
    let terminateds: Vec<bool> = list("terminateds", answer.terminateds, samples)?;
    let answers = optional("answers", answer.answers, samples)?;
    let results = observations
        .into_iter()
        .zip(metadata)
        .zip(stop_strings)
        .zip(rewards)
        .zip(terminateds)
        .zip(answers);
    let results = results.map(
        |(((((observation, metadata), next_stop_strings), reward), terminated), answer)| {
            StepResult {
                observation: Message {
                    role: observation.role,
                    content: observation.content,
                    ..Message::default()
                },
                metadata: metadata.unwrap_or(Value::Null),
                next_stop_strings,
                reward,
                terminated,
                truncated: false,
                answer,
            }
        },
    );
    Ok(results.collect())
}

impl StepServer {
    /// Sends a batch; what becomes of the answer is in the row of its first sample alone.
    async fn ask(
        &self,
        samples: &[Sample<'_>],
        call: TurnCall,
        first: &OpenTurn,
    ) -> Result<Vec<StepResult>, Failure> {
        let post = Post {
            call,
            body: request(samples)?,
            cookies: None,
            deadline: self.deadline.map(|limit| (limit, "step_timeout")),
        };
        let posted: Posted = self.target.send(post, first.clone()).await?;
        let body = posted.ok()?;
        results(body, samples.len()).map_err(|why| {
            let why = format!("the step's answer can't be used: {why}{}", posted.quote());
            posted.refuse(FailureClass::Data, &why)
        })
    }
}

#[async_trait]
impl Environment for StepServer {
    async fn step(&self, samples: &mut [Sample<'_>]) -> Result<Vec<StepResult>, Failure> {
        let mut turns = Vec::with_capacity(samples.len());
        for sample in samples.iter() {
            let name = Arc::clone(&self.name);
            let call = TurnCall::new(sample.step.turn, TurnKind::Step, name);
            let turn = self.target.begin(&call, sample.log)?;
            turns.push((call, turn));
        }
        let Some(((call, first), others)) = turns.split_first() else {
            return Ok(Vec::new());
        };
        let result = self.ask(samples, call.clone(), first).await;
        // The bytes are counted once.
        let end = TurnEnd {
            request_bytes: 0,
            response_bytes: 0,
            ..first.ended().unwrap_or_default()
        };
        for (_, turn) in others {
            turn.end(end.clone());
        }
        result
    }

    fn address(&self) -> String {
        self.target.address().to_owned()
    }
}
