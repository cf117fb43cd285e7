use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Environment, Sample, StepResult, Stepped};
use crate::call::{CallEnd, CallKind, CallSpec, OpenCall, Post, Posted, Target};
use crate::model::Message;
use crate::retry::{Failure, FailureClass};

/// An environment that takes a step with a whole batch in one request: `POST {url}/step`. A step
/// changes its state, so none is retried.
#[derive(Debug)]
pub struct StepServer {
    target: Target,
    name: Arc<str>,
    deadline: Option<Duration>,
}

impl StepServer {
    /// Creates the environment of the tasks named `name` below the address of `server`. `deadline` is the
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
struct StepRequest<'a> {
    message_log_batch: Vec<Vec<SentMessage<'a>>>,
    metadata: Vec<&'a Value>,
    rollout_ids: Vec<String>,
}

/// A message as an environment sees it.
#[derive(Serialize)]
struct SentMessage<'a> {
    role: &'a str,
    content: &'a Value,
}

impl<'a> SentMessage<'a> {
    fn of(message: &'a Message) -> Self {
        Self {
            role: &message.role,
            content: &message.content,
        }
    }
}

/// An answer, list by list, so that an error can name the list.
#[derive(Deserialize)]
struct StepAnswers<'a> {
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
struct StepObservation {
    role: String,
    content: Value,
}

fn request(samples: &[Sample<'_>]) -> Result<Bytes, Failure> {
    let steps = || samples.iter().map(|sample| sample.step);
    let request = StepRequest {
        message_log_batch: steps()
            .map(|step| step.messages.iter().map(SentMessage::of).collect())
            .collect(),
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

/// Reads a list of an answer, with one entry for each sample.
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

/// Reads a list that can be left out, or be null.
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
    let answer: StepAnswers =
        serde_json::from_slice(body).map_err(|source| format!("not a JSON object: {source}"))?;
    let observations: Vec<StepObservation> = list("observations", answer.observations, samples)?;
    let mut metadata = optional("metadata", answer.metadata, samples)?.into_iter();
    let stop_strings = optional("next_stop_strings", answer.next_stop_strings, samples)?;
    let mut stop_strings = stop_strings.into_iter();
    let rewards: Vec<f64> = list("rewards", answer.rewards, samples)?;
    let terminateds: Vec<bool> = list("terminateds", answer.terminateds, samples)?;
    let mut answers = optional("answers", answer.answers, samples)?.into_iter();
    let results = observations.into_iter().zip(rewards).zip(terminateds);
    let results = results.map(|((observation, reward), terminated)| StepResult {
        observation: Message {
            role: observation.role,
            content: observation.content,
            ..Message::default()
        },
        metadata: metadata.next().flatten().unwrap_or(Value::Null),
        next_stop_strings: stop_strings.next().flatten(),
        reward,
        terminated,
        truncated: false,
        answer: answers.next().flatten(),
    });
    Ok(results.collect())
}

impl StepServer {
    /// Sends a batch. Only the row of its first sample records the answer.
    async fn ask(
        &self,
        samples: &[Sample<'_>],
        call: CallSpec,
        first: &OpenCall,
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
    async fn step(&self, samples: &mut [Sample<'_>]) -> Stepped {
        let mut calls = Vec::with_capacity(samples.len());
        for sample in samples.iter() {
            let name = Arc::clone(&self.name);
            let call = CallSpec::new(sample.step.turn, CallKind::Step, name);
            match self.target.begin(&call, sample.log) {
                Ok(open) => calls.push((call, open)),
                // A sample whose caller has just gone away does not fail the others.
                Err(_) if sample.log.is_closed() => {}
                Err(failure) => return Err(failure),
            }
        }
        let Some(((call, first), others)) = calls.split_first() else {
            return Ok(Vec::new());
        };
        let result = self.ask(samples, call.clone(), first).await;
        // The bytes count only for the first sample.
        let end = CallEnd {
            request_bytes: 0,
            response_bytes: 0,
            ..first.ended().unwrap_or_default()
        };
        for (_, open) in others {
            open.end(end.clone());
        }
        Ok(result?.into_iter().map(Ok).collect())
    }

    fn address(&self) -> String {
        self.target.address().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderMap;
    use serde_json::json;

    use super::*;
    use crate::call::CallRow;
    use crate::call::scripted::{Answer, Received, ScriptedServer, http};
    use crate::environment::scene::Scene;

    /// Takes a step with two samples. Returns the request, the results, and the rows of each sample.
    async fn step(
        answer: Answer,
    ) -> (
        Vec<Received>,
        Result<Vec<StepResult>, Failure>,
        [Vec<CallRow>; 2],
    ) {
        let server = ScriptedServer::start(move |_| answer.clone()).await;
        let target = Target::new(server.url(), HeaderMap::new(), http()).unwrap();
        let environment = StepServer::new("math", &target, None);
        let (mut first, mut second) = (Scene::new(0), Scene::new(1));
        let results = {
            let mut samples = [first.sample(), second.sample()];
            let stepped = environment.step(&mut samples).await;
            stepped.map(|results| results.into_iter().map(Result::unwrap).collect())
        };
        let rows = [first.log.take(), second.log.take()];
        (server.received(), results, rows)
    }

    fn answer() -> Value {
        json!({
            "observations": [{"role": "environment", "content": "a"}, {"role": "user", "content": [1]}],
            "metadata": [{"state": 2}, null],
            "next_stop_strings": [null, []],
            "rewards": [0.5, -1],
            "terminateds": [false, true],
            "answers": [null, "42"],
        })
    }

    #[tokio::test]
    async fn a_batch_is_one_request_and_a_row_of_every_sample() {
        let (received, results, rows) = step(Answer::ok(answer())).await;
        assert_eq!(received.len(), 1);
        let request = &received[0];
        assert_eq!(request.path, "/step");
        assert_eq!(request.header("x-request-id"), Some("3-0-a0-c0"));
        assert_eq!(request.body["rollout_ids"], json!(["3-0", "3-1"]));
        assert_eq!(
            request.body["metadata"],
            json!([{"state": 0}, {"state": 1}])
        );
        let last = json!({"role": "assistant", "content": "second of 1"});
        assert_eq!(request.body["message_log_batch"][1][5], last);
        let results = results.unwrap();
        let expected = StepResult {
            observation: Message::text("environment", "a"),
            metadata: json!({"state": 2}),
            next_stop_strings: None,
            reward: 0.5,
            terminated: false,
            truncated: false,
            answer: None,
        };
        assert_eq!(results[0], expected);
        assert_eq!(results[1].observation.content, json!([1]));
        assert_eq!(results[1].metadata, Value::Null);
        assert_eq!(results[1].next_stop_strings, Some(Vec::new()));
        assert_eq!(results[1].answer.as_deref(), Some("42"));
        assert!(results[1].terminated);
        let ends: Vec<&CallEnd> = rows
            .iter()
            .map(|rows| {
                assert_eq!((rows.len(), rows[0].start.kind), (1, CallKind::Step));
                assert_eq!(rows[0].start.turn, 2);
                rows[0].end.as_ref().unwrap()
            })
            .collect();
        assert_eq!(ends[0].elapsed, ends[1].elapsed);
        assert_eq!(ends[1].http_status, Some(200));
        assert_eq!(ends[0].request_bytes, request.text.len() as u64);
        assert_eq!(ends[1].request_bytes, 0);
    }

    #[tokio::test]
    async fn a_sample_that_is_over_keeps_nobody_from_the_step() {
        let server = ScriptedServer::start(move |_| Answer::ok(answer())).await;
        let target = Target::new(server.url(), HeaderMap::new(), http()).unwrap();
        let environment = StepServer::new("math", &target, None);
        let (mut first, mut second) = (Scene::new(0), Scene::new(1));
        first.log.take();
        let mut samples = [first.sample(), second.sample()];
        assert_eq!(environment.step(&mut samples).await.unwrap().len(), 2);
        let received = server.received();
        assert_eq!(received[0].header("x-request-id"), Some("3-1-a0-c0"));
        assert!(first.log.take().is_empty());
        let rows = second.log.take();
        assert_eq!(rows[0].end.as_ref().unwrap().http_status, Some(200));
    }

    #[tokio::test]
    async fn rows_say_how_a_step_ended_that_the_first_sample_did_not_wait_for() {
        let (mut first, mut second) = (Scene::new(0), Scene::new(1));
        let log = first.log.clone();
        let server = ScriptedServer::start(move |_| {
            log.take();
            Answer::status(503, "busy")
        })
        .await;
        let target = Target::new(server.url(), HeaderMap::new(), http()).unwrap();
        let environment = StepServer::new("math", &target, None);
        let mut samples = [first.sample(), second.sample()];
        environment.step(&mut samples).await.unwrap_err();
        let rows = second.log.take();
        let end = rows[0].end.as_ref().unwrap();
        assert_eq!(end.failure, Some(FailureClass::Infra));
        assert_eq!(end.http_status, Some(503));
    }

    #[tokio::test]
    async fn lists_that_say_nothing_can_be_left_out() {
        let mut answer = answer();
        let fields = answer.as_object_mut().unwrap();
        fields.shift_remove("metadata");
        fields["answers"] = Value::Null;
        fields["next_stop_strings"] = Value::Null;
        let (_, results, _) = step(Answer::ok(answer)).await;
        for result in results.unwrap() {
            assert_eq!((result.metadata, result.answer), (Value::Null, None));
            assert_eq!(result.next_stop_strings, None);
        }
    }

    #[tokio::test]
    async fn a_list_that_does_not_fit_is_named_in_every_row() {
        for (field, value, expected) in [
            (
                "rewards",
                json!([1]),
                "'rewards' has 1 entries for 2 samples",
            ),
            ("rewards", json!([1, null]), "'rewards': invalid type: null"),
            (
                "rewards",
                json!([1, true]),
                "'rewards': invalid type: boolean",
            ),
            ("rewards", Value::Null, "'rewards' is missing"),
            (
                "terminateds",
                json!([true, 1]),
                "'terminateds': invalid type",
            ),
            (
                "observations",
                json!([{"role": "user"}, {}]),
                "'observations': missing field `content`",
            ),
            ("metadata", json!([]), "'metadata' has 0 entries"),
            (
                "next_stop_strings",
                json!([null, "x"]),
                "'next_stop_strings': invalid type",
            ),
            ("answers", json!(["a", "b", "c"]), "'answers' has 3 entries"),
        ] {
            let mut answer = answer();
            answer[field] = value;
            let (_, results, rows) = step(Answer::ok(answer)).await;
            let failure = results.unwrap_err();
            assert_eq!(failure.class, FailureClass::Data);
            assert!(failure.message.contains(expected), "{failure:?}");
            for rows in rows {
                let end = rows[0].end.as_ref().unwrap();
                assert_eq!(end.failure, Some(FailureClass::Data));
                assert!(end.error.as_ref().unwrap().contains(expected));
            }
        }
        let text = answer().to_string().replace("0.5", "1e999");
        let (_, results, _) = step(Answer::ok(text)).await;
        let message = results.unwrap_err().message;
        assert!(
            message.contains("'rewards': number out of range"),
            "{message}"
        );
    }

    #[tokio::test]
    async fn a_failed_step_is_not_repeated() {
        for (status, class) in [(503, FailureClass::Infra), (422, FailureClass::Data)] {
            let refusal = Answer::status(status, "busy").with("retry-after", 7);
            let (received, results, rows) = step(refusal).await;
            assert_eq!(received.len(), 1);
            let failure = results.unwrap_err();
            assert_eq!((failure.class, failure.http_status), (class, Some(status)));
            for rows in rows {
                let end = rows[0].end.as_ref().unwrap();
                assert_eq!((end.failure, end.http_status), (Some(class), Some(status)));
            }
        }
    }
}
