use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use serde_json::Value;

use super::episode::{self, Said};
use super::{Begun, Environment, Sample, StepResult};
use crate::answer::AnswerFields;
use crate::failure::{Failure, FailureClass};
use crate::model::{Message, OBSERVATION_ROLE};
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

    /// A request for each sample, many at the same time. If one fails, all do.
    async fn step(&self, samples: &mut [Sample<'_>]) -> Result<Vec<StepResult>, Failure> {
        let steps = samples.iter_mut();
        let steps = steps.map(|sample| self.verify(sample).boxed()).collect();
        episode::each(steps).await
    }

    fn address(&self) -> String {
        self.server.address().to_owned()
    }
}
