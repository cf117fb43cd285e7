use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use serde::Deserialize;
use serde_json::Value;

use super::episode::{self, Said};
use super::{Begun, Environment, Sample, StepResult, Stepped};
use crate::model::{Message, OBSERVATION_ROLE};
use crate::retry::Failure;
use crate::turn::{CookieJar, Post, Target, TurnCall, TurnKind, TurnLog};

/// A Gymnasium-style server: `POST /reset` begins an episode, and each `POST /step` is told what the
/// model said last.
#[derive(Debug)]
pub struct GymnasiumServer {
    server: Target,
    reset: Target,
    step: Target,
    name: Arc<str>,
    deadline: Option<Duration>,
}

#[derive(Deserialize)]
struct ResetAnswer {
    observation: Option<String>,
}

#[derive(Deserialize)]
struct StepAnswer {
    observation: Option<String>,
    reward: f64,
    #[serde(default)]
    terminated: bool,
    #[serde(default)]
    truncated: bool,
}

impl GymnasiumServer {
    /// The environment of tasks of kind `name` at `server`. `deadline` is the longest time of a
    /// request.
    pub fn new(name: impl Into<Arc<str>>, server: Target, deadline: Option<Duration>) -> Self {
        Self {
            reset: server.at("reset"),
            step: server.at("step"),
            server,
            name: name.into(),
            deadline,
        }
    }

    async fn step_of(&self, sample: &mut Sample<'_>) -> Result<StepResult, Failure> {
        let step = sample.step;
        let post = Post {
            call: TurnCall::new(step.turn, TurnKind::Step, Arc::clone(&self.name)),
            body: episode::row_with_response(step, Said::Last)?,
            cookies: Some(sample.cookies),
            deadline: self.deadline.map(|limit| (limit, "step_timeout")),
        };
        let posted = self.step.post(post, sample.log).await?;
        let answer: StepAnswer = posted.json()?;
        let observation = answer.observation.unwrap_or_default();
        Ok(StepResult {
            observation: Message::text(OBSERVATION_ROLE, observation),
            metadata: Value::Null,
            next_stop_strings: None,
            reward: answer.reward,
            terminated: answer.terminated,
            truncated: answer.truncated,
            answer: None,
        })
    }
}

#[async_trait]
impl Environment for GymnasiumServer {
    async fn begin(&self, row: &Value, log: &TurnLog) -> Result<Begun, Failure> {
        let mut cookies = CookieJar::default();
        let post = Post {
            call: TurnCall::new(0, TurnKind::Reset, Arc::clone(&self.name)),
            body: episode::row(row)?,
            cookies: Some(&mut cookies),
            deadline: self.deadline.map(|limit| (limit, "step_timeout")),
        };
        let posted = self.reset.post(post, log).await?;
        let answer: ResetAnswer = posted.json()?;
        let observation = answer.observation.filter(|text| !text.is_empty());
        Ok(Begun {
            cookies,
            observation: observation.map(|text| Message::text(OBSERVATION_ROLE, text)),
        })
    }

    /// A request for each sample, many at the same time.
    async fn step(&self, samples: &mut [Sample<'_>]) -> Stepped {
        let steps = samples.iter_mut();
        let steps = steps.map(|sample| self.step_of(sample).boxed());
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
    use crate::retry::FailureClass;
    use crate::turn::scripted::{Answer, ScriptedServer, http};

    /// What comes of the first turn at a server that answers this to `/reset` and to `/step`.
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
        let environment = GymnasiumServer::new("game", target, None);
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
