use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::episode::{Episode, Setup};
use super::gathering::Gathering;
use super::lockstep::Seat;
use super::per_sample::run_sample;
use super::siblings::Siblings;
use super::{Environments, Limits};
use crate::agent::judge::{Wording, judge};
use crate::agent::{Agent, Answer, Reply, RolloutRequest};
use crate::config::{Driver, GroupFailure, Rules};
use crate::http::Secrets;
use crate::model::{Policy, Tokenizer};
use crate::retry::{Failure, FailureClass};
use crate::turn::RolloutKey;

/// Samples of a batch at most, unless settings say otherwise.
const BATCH_SIZE: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// What a [`MultiTurnAgent`] is made of.
#[derive(Debug)]
pub struct MultiTurnOptions {
    /// The model.
    pub policy: Arc<dyn Policy>,
    /// What it talks to.
    pub environments: Environments,
    /// Counts the tokens of prompts and observations.
    pub tokenizer: Arc<dyn Tokenizer>,
    /// Which form of NeMo RL samples follow.
    pub rules: Rules,
    /// How far a sample may go.
    pub limits: Limits,
    /// Tokens of one generation at most, whatever a row asks for.
    pub max_new_tokens: Option<u64>,
    /// In which order samples take their turns.
    pub driver: Driver,
    /// Samples of a batch at most; 1,024 if none. Only lockstep has batches.
    pub batch_size: Option<NonZeroUsize>,
    /// What a rollout that fails means for its siblings.
    pub group: GroupFailure,
    /// The longest time of the rollouts of one task that are in flight together, from the begin of
    /// the first of them.
    pub group_timeout: Option<Duration>,
}

/// NeMo RL's loop between a model and an environment.
#[derive(Debug)]
pub struct MultiTurnAgent {
    setup: Arc<Setup>,
    /// Only lockstep has batches.
    batches: Option<Gathering>,
    siblings: Siblings,
    address: String,
}

impl MultiTurnAgent {
    /// An agent that asks these. Nothing is sent before the first rollout.
    pub fn new(options: MultiTurnOptions) -> Self {
        let setup = Arc::new(Setup {
            policy: options.policy,
            environments: options.environments,
            tokenizer: options.tokenizer,
            rules: options.rules,
            limits: options.limits,
            max_new_tokens: options.max_new_tokens,
        });
        let batch_size = options.batch_size.unwrap_or(BATCH_SIZE);
        let is_lockstep = options.driver == Driver::Lockstep;
        Self {
            address: setup.policy.address(),
            batches: is_lockstep.then(|| Gathering::new(Arc::clone(&setup), batch_size)),
            siblings: Siblings::new(options.group, options.group_timeout),
            setup,
        }
    }

    async fn answer(&self, request: &RolloutRequest) -> Result<Answer, Failure> {
        let episode = Episode::new(&self.setup, request)?;
        let body = match &self.batches {
            None => run_sample(&self.setup, episode).await?,
            Some(batches) => {
                let (seat, outcome) = Seat::new(episode);
                batches.join(seat).await;
                outcome.await.unwrap_or_else(|_| Err(lost()))?
            }
        };
        let RolloutKey {
            task_index,
            rollout_index,
            ..
        } = request.key();
        let failure = |class, why: &str| {
            let whose = format!("task {task_index}, rollout {rollout_index}");
            Failure::new(class, format!("{whose}: {why}"))
        };
        let wording = Wording {
            failure: &failure,
            quote: &|_| String::new(),
            // Model and environments keep their secrets out of what they say.
            shown: &|text| Secrets::default().shown(text),
        };
        judge(body.into(), true, &wording)
    }
}

fn lost() -> Failure {
    let why = "the batch of this rollout was abandoned before its end";
    Failure::new(FailureClass::Interrupted, why)
}

#[async_trait]
impl Agent for MultiTurnAgent {
    async fn run(&self, request: RolloutRequest) -> Reply {
        let began = Instant::now();
        let answer = self.answer(&request);
        let result = self.siblings.run(request.key(), answer).await;
        Reply {
            elapsed: began.elapsed(),
            ..Reply::new(result)
        }
    }

    fn check_task_name(&self, task_name: Option<&str>) -> Result<(), String> {
        let found = self.setup.environments.find(task_name);
        found.map(|_| ()).map_err(|unknown| unknown.to_string())
    }

    fn address(&self) -> &str {
        &self.address
    }
}
