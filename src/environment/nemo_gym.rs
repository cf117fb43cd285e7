//! Environment servers of NeMo Gym, which know one episode at a time: they get the row, and the model's messages as a
//! response of the Responses API.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::{FutureExt, StreamExt, stream};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Begun, Environment, Sample, Step, StepResult, Stepped};
use crate::call::{CallKind, CallLog, CallSpec, CookieJar, Post, Posted, Target};
use crate::config::Resources;
use crate::model::{Message, OBSERVATION_ROLE, texts};
use crate::outcome::AnswerFields;
use crate::retry::{Failure, FailureClass};

/// The most steps of a batch that are taken at the same time.
const AT_ONCE: usize = 256;

const ASSISTANT: &str = "assistant";

/// A server with one path that begins episodes and one that takes their steps.
#[derive(Debug)]
pub struct EpisodeServer {
    target: Target,
    begin: Target,
    step: Target,
    protocol: Resources,
    name: Arc<str>,
    deadline: Option<Duration>,
}

impl EpisodeServer {
    /// Creates the environment of the tasks named `name` at `server`. `deadline` is the longest time of a request.
    ///
    /// [`Resources::Tools`] is a resources server of NeMo Gym, which scores: `POST /seed_session` begins an episode, and the
    /// first step is `POST /verify`, which ends it. [`Resources::Gymnasium`] is a server in the style of Gymnasium: `POST
    /// /reset` begins an episode, and each `POST /step` gets the model's last message.
    pub fn new(
        protocol: Resources,
        name: impl Into<Arc<str>>,
        server: Target,
        deadline: Option<Duration>,
    ) -> Self {
        let (begin, step) = match protocol {
            Resources::Tools => ("seed_session", "verify"),
            Resources::Gymnasium => ("reset", "step"),
        };
        Self {
            begin: server.at(begin),
            step: server.at(step),
            target: server,
            protocol,
            name: name.into(),
            deadline,
        }
    }

    /// Sends the row with the model's messages.
    async fn step_of(&self, sample: &mut Sample<'_>) -> Result<StepResult, Failure> {
        let (kind, said) = match self.protocol {
            Resources::Tools => (CallKind::Verify, sample.step.turn as usize),
            Resources::Gymnasium => (CallKind::Step, 1),
        };
        let body = row_with_response(sample.step, said)?;
        let post = self.post(sample.step.turn, kind, body, sample.cookies);
        let posted = self.step.post(post, sample.log).await?;
        if self.protocol == Resources::Tools {
            return Ok(StepResult::last(reward(&posted)?));
        }
        let answer: StepReply = posted.json()?;
        let observation = answer.observation.unwrap_or_default();
        Ok(StepResult {
            observation: Message::text(OBSERVATION_ROLE, observation),
            terminated: answer.terminated,
            truncated: answer.truncated,
            ..StepResult::last(answer.reward)
        })
    }

    fn post<'a>(
        &self,
        turn: u32,
        kind: CallKind,
        body: Bytes,
        cookies: &'a mut CookieJar,
    ) -> Post<'a> {
        Post {
            call: CallSpec::new(turn, kind, Arc::clone(&self.name)),
            body,
            cookies: Some(cookies),
            deadline: self.deadline.map(|limit| (limit, "step_timeout")),
        }
    }
}

/// Returns the reward of an answer, by NeMo Gym's contract: flags of failure come first.
fn reward(posted: &Posted) -> Result<f64, Failure> {
    let body = posted.ok()?;
    let data = |why: String| {
        let why = format!("{why}{}", posted.quote());
        posted.refuse(FailureClass::Data, &why)
    };
    let text = std::str::from_utf8(body).map_err(|_| data("the answer is not UTF-8".into()))?;
    let fields = AnswerFields::parse(text)
        .map_err(|source| data(format!("the answer is not a JSON object ({source})")))?;
    let flagged = |class, why: &str| Failure {
        failure_terminal: fields.failure_terminal,
        ..posted.refuse(class, why)
    };
    if fields.no_persist {
        let why = "the answer asks to be forgotten (_ng_no_persist)";
        return Err(flagged(FailureClass::NotPersisted, why));
    }
    if let Some(class) = &fields.failure_class {
        let class = posted.shown(class.as_bytes());
        let why = format!("the answer is a failure (_ng_failure_class: {class:?})");
        return Err(Failure {
            answer: Some(body.clone()),
            ..flagged(FailureClass::AgentFlagged, &why)
        });
    }
    let reward = fields.reward.filter(|reward| reward.is_finite());
    reward.ok_or_else(|| data("the answer has no numeric 'reward'".into()))
}

#[async_trait]
impl Environment for EpisodeServer {
    async fn begin(&self, row: &Value, log: &CallLog) -> Result<Begun, Failure> {
        let kind = match self.protocol {
            Resources::Tools => CallKind::SeedSession,
            Resources::Gymnasium => CallKind::Reset,
        };
        let mut cookies = CookieJar::default();
        let post = self.post(0, kind, json(row)?, &mut cookies);
        let posted = self.begin.post(post, log).await?;
        let mut observation = None;
        if self.protocol == Resources::Gymnasium {
            let answer: ResetReply = posted.json()?;
            observation = answer.observation.filter(|text| !text.is_empty());
        }
        posted.ok()?;
        Ok(Begun {
            cookies,
            observation: observation.map(|text| Message::text(OBSERVATION_ROLE, text)),
        })
    }

    /// Sends a request for each sample, many at the same time.
    async fn step(&self, samples: &mut [Sample<'_>]) -> Stepped {
        let steps = samples.iter_mut();
        let steps: Vec<_> = steps.map(|sample| self.step_of(sample).boxed()).collect();
        Ok(stream::iter(steps).buffered(AT_ONCE).collect().await)
    }

    fn address(&self) -> String {
        self.target.address().to_owned()
    }
}

#[derive(Deserialize)]
struct ResetReply {
    observation: Option<String>,
}

#[derive(Deserialize)]
struct StepReply {
    observation: Option<String>,
    reward: f64,
    #[serde(default)]
    terminated: bool,
    #[serde(default)]
    truncated: bool,
}

/// Returns the row with the model's last `said` messages as a response, with the fields that NeMo Gym requires.
fn row_with_response(step: Step<'_>, said: usize) -> Result<Bytes, Failure> {
    #[derive(Serialize)]
    struct RowWithResponse<'a> {
        #[serde(flatten)]
        row: IndexMap<&'a String, &'a Value>,
        response: Value,
    }
    let none = Map::new();
    let row = step.row.as_object().unwrap_or(&none);
    let params = row.get("responses_create_params");
    let model = params.and_then(|params| params.get("model")?.as_str());
    let messages = step.messages.iter().rev();
    let mut said: Vec<&Message> = messages
        .filter(|message| message.role == ASSISTANT)
        .take(said)
        .collect();
    said.reverse();
    let item = |(at, message): (usize, &Message)| {
        let parts = texts(&message.content).into_iter();
        let part = |text| json!({"annotations": [], "text": text, "type": "output_text"});
        json!({
            "id": format!("msg_{at}"),
            "content": parts.map(part).collect::<Value>(),
            "role": ASSISTANT,
            "status": "completed",
            "type": "message",
        })
    };
    json(&RowWithResponse {
        row: row.iter().filter(|(name, _)| *name != "response").collect(),
        response: json!({
            "id": format!("resp_{}", step.turn),
            "created_at": 0,
            "model": model.unwrap_or_default(),
            "object": "response",
            "output": said.into_iter().enumerate().map(item).collect::<Value>(),
            "parallel_tool_calls": true,
            "tool_choice": "auto",
            "tools": [],
        }),
    })
}

fn json(value: &impl Serialize) -> Result<Bytes, Failure> {
    let text = serde_json::to_vec(value).map_err(|source| {
        let why = format!("a row could not be written as JSON: {source}");
        Failure::new(FailureClass::Data, why)
    })?;
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderMap;

    use super::*;
    use crate::call::scripted::{Answer, Received, ScriptedServer, http, log};
    use crate::environment::scene::Scene;

    async fn environment(
        script: impl FnMut(&Received) -> Answer + Send + 'static,
    ) -> (ScriptedServer, EpisodeServer) {
        let server = ScriptedServer::start(script).await;
        let target = Target::new(server.url(), HeaderMap::new(), http()).unwrap();
        (
            server,
            EpisodeServer::new(Resources::Tools, "math", target, None),
        )
    }

    #[tokio::test]
    async fn a_session_is_seeded_and_its_answer_verified() {
        let (server, environment) = environment(|request| {
            let id = &request.body["id"];
            match request.path.as_str() {
                "/seed_session" => Answer::ok("{}").with("set-cookie", format!("s={id}; path=/")),
                _ => Answer::ok(json!({"reward": id})),
            }
        })
        .await;
        let mut scenes: Vec<Scene> = (0..3).map(Scene::new).collect();
        for scene in &mut scenes {
            let begun = environment.begin(&scene.row, &scene.log).await.unwrap();
            assert_eq!(begun.observation, None);
            scene.cookies = begun.cookies;
        }
        let mut samples: Vec<Sample> = scenes.iter_mut().map(Scene::sample).collect();
        let results = environment.step(&mut samples).await.unwrap();
        let results: Vec<StepResult> = results.into_iter().map(Result::unwrap).collect();
        let rewards: Vec<f64> = results.iter().map(|result| result.reward).collect();
        assert_eq!(rewards, [0.0, 1.0, 2.0]);
        assert!(results.iter().all(|result| result.terminated));
        assert_eq!(results[0].observation, Message::text("environment", ""));
        let received = server.received();
        assert_eq!(received.len(), 6);
        for request in &received[3..] {
            assert_eq!(request.path, "/verify");
            let id = &request.body["id"];
            assert_eq!(request.header("cookie"), Some(&*format!("s={id}")));
            let text = |at: usize| &request.body["response"]["output"][at]["content"][0]["text"];
            assert_eq!(text(0), &json!(format!("first of {id}")));
            assert_eq!(text(1), &json!(format!("second of {id}")));
            assert_eq!(text(2), &Value::Null);
            assert_eq!(request.body["response"]["model"], "m");
            assert_eq!(request.body["x"], 1.5);
            assert_eq!(request.text.matches("\"response\"").count(), 2);
        }
        let kinds: Vec<CallKind> = scenes[1]
            .log
            .take()
            .iter()
            .map(|row| row.start.kind)
            .collect();
        assert_eq!(kinds, [CallKind::SeedSession, CallKind::Verify]);
    }

    #[tokio::test]
    async fn an_answer_without_a_reward_is_refused_and_flags_are_heeded() {
        for (body, class) in [
            (json!({"reward": null}), FailureClass::Data),
            (json!([1]), FailureClass::Data),
            (
                json!({"reward": 1, "_ng_failure_class": "x"}),
                FailureClass::AgentFlagged,
            ),
            (
                json!({"reward": 1, "_ng_no_persist": true}),
                FailureClass::NotPersisted,
            ),
        ] {
            let (_server, environment) = environment(move |_| Answer::ok(&body)).await;
            let mut scene = Scene::new(0);
            let results = environment.step(&mut [scene.sample()]).await.unwrap();
            let failure = results[0].clone().unwrap_err();
            assert_eq!(failure.class, class);
            let end = scene.log.take().remove(0).end.unwrap();
            assert_eq!(end.failure, Some(class));
        }
    }

    #[tokio::test]
    async fn a_session_that_is_refused_does_not_begin() {
        let (_server, environment) = environment(|_| Answer::status(500, "no")).await;
        let failure = environment.begin(&json!({}), &log(0)).await.unwrap_err();
        assert_eq!(
            (failure.class, failure.http_status),
            (FailureClass::Infra, Some(500))
        );
    }

    /// Plays the first turn at a server that answers `/reset` and `/step` with these values.
    async fn play(
        reset: Value,
        step: Value,
    ) -> (
        ScriptedServer,
        Result<(Option<Message>, StepResult), Failure>,
    ) {
        let server = ScriptedServer::start(move |request| match request.path.as_str() {
            "/reset" => Answer::ok(&reset).with("set-cookie", "s=1"),
            _ => Answer::ok(&step),
        })
        .await;
        let target = Target::new(server.url(), HeaderMap::new(), http()).unwrap();
        let environment = EpisodeServer::new(Resources::Gymnasium, "game", target, None);
        let mut scene = Scene::new(0);
        let played = async {
            let begun = environment.begin(&scene.row, &scene.log).await?;
            scene.cookies = begun.cookies;
            let mut results = environment.step(&mut [scene.sample()]).await?;
            Ok((begun.observation, results.remove(0)?))
        };
        let played = played.await;
        (server, played)
    }

    #[tokio::test]
    async fn an_episode_is_reset_and_told_what_was_said_last() {
        let step = json!({"observation": "cold", "reward": 0.5, "terminated": false, "truncated": true, "info": {}});
        let (server, played) = play(json!({"observation": "guess", "info": {}}), step).await;
        let (observation, result) = played.unwrap();
        assert_eq!(observation, Some(Message::text("environment", "guess")));
        assert_eq!(result.observation, Message::text("environment", "cold"));
        assert_eq!(
            (result.reward, result.terminated, result.truncated),
            (0.5, false, true)
        );
        let received = server.received();
        assert_eq!(
            (&*received[0].path, &*received[1].path),
            ("/reset", "/step")
        );
        assert_eq!(received[0].body["response"], "old");
        assert_eq!(received[1].header("cookie"), Some("s=1"));
        let output = received[1].body["response"]["output"].as_array().unwrap();
        assert_eq!(output.len(), 1);
        assert_eq!(output[0]["content"][0]["text"], "second of 0");
    }

    #[tokio::test]
    async fn what_is_not_said_is_nothing_but_a_reward_must_be() {
        let (_, played) = play(json!({"observation": null}), json!({"reward": 1})).await;
        let (observation, result) = played.unwrap();
        assert_eq!(observation, None);
        assert_eq!(result.observation.content, "");
        assert!(!result.terminated && !result.truncated);
        let (_, played) = play(json!({}), json!({"observation": "x"})).await;
        let failure = played.unwrap_err();
        assert_eq!(failure.class, FailureClass::Data);
        assert!(failure.message.contains("`reward`"), "{failure:?}");
    }
}
