use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use serde_json::Value;

use super::episode::{self, Said};
use super::{Begun, Environment, Sample, StepResult, Stepped};
use crate::model::{Message, OBSERVATION_ROLE};
use crate::outcome::AnswerFields;
use crate::retry::{Failure, FailureClass};
use crate::turn::{CookieJar, Post, Posted, Target, TurnCall, TurnKind, TurnLog};

/// A resources server of NeMo Gym as an environment that scores: `POST /seed_session` begins an
/// episode, and the first step is `POST /verify`, which ends it.
#[derive(Debug)]
pub struct ResourcesServer {
    server: Target,
    seed_session: Target,
    verify: Target,
    name: Arc<str>,
    deadline: Option<Duration>,
}

impl ResourcesServer {
    /// The environment of tasks of kind `name` at `server`. `deadline` is the longest time of a
    /// request.
    pub fn new(name: impl Into<Arc<str>>, server: Target, deadline: Option<Duration>) -> Self {
        Self {
            seed_session: server.at("seed_session"),
            verify: server.at("verify"),
            server,
            name: name.into(),
            deadline,
        }
    }

    async fn verify(&self, sample: &mut Sample<'_>) -> Result<StepResult, Failure> {
        let step = sample.step;
        let post = Post {
            call: TurnCall::new(step.turn, TurnKind::Verify, Arc::clone(&self.name)),
            body: episode::row_with_response(step, Said::All)?,
            cookies: Some(sample.cookies),
            deadline: self.deadline.map(|limit| (limit, "step_timeout")),
        };
        let posted = self.verify.post(post, sample.log).await?;
        Ok(StepResult {
            observation: Message::text(OBSERVATION_ROLE, ""),
            metadata: Value::Null,
            next_stop_strings: None,
            reward: reward(&posted)?,
            terminated: true,
            truncated: false,
            answer: None,
        })
    }
}

/// The reward of an answer, by NeMo Gym's contract: its flags come first.
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
impl Environment for ResourcesServer {
    async fn begin(&self, row: &Value, log: &TurnLog) -> Result<Begun, Failure> {
        let mut cookies = CookieJar::default();
        let post = Post {
            call: TurnCall::new(0, TurnKind::SeedSession, Arc::clone(&self.name)),
            body: episode::row(row)?,
            cookies: Some(&mut cookies),
            deadline: self.deadline.map(|limit| (limit, "step_timeout")),
        };
        self.seed_session.post(post, log).await?.ok()?;
        Ok(Begun {
            cookies,
            observation: None,
        })
    }

    /// A request for each sample, many at the same time.
    async fn step(&self, samples: &mut [Sample<'_>]) -> Stepped {
        let steps = samples.iter_mut();
        let steps = steps.map(|sample| self.verify(sample).boxed());
        episode::each(steps.collect()).await
    }

    fn address(&self) -> String {
        self.server.address().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderMap;
    use serde_json::json;

    use super::*;
    use crate::environment::scene::Scene;
    use crate::turn::scripted::{Answer, Received, ScriptedServer, http, log};

    async fn environment(
        script: impl FnMut(&Received) -> Answer + Send + 'static,
    ) -> (ScriptedServer, ResourcesServer) {
        let server = ScriptedServer::start(script).await;
        let target = Target::new(server.url(), HeaderMap::new(), http()).unwrap();
        (server, ResourcesServer::new("math", target, None))
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
        let kinds: Vec<TurnKind> = scenes[1]
            .log
            .take()
            .iter()
            .map(|row| row.start.kind)
            .collect();
        assert_eq!(kinds, [TurnKind::SeedSession, TurnKind::Verify]);
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
}
