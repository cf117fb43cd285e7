//! The loop of NeMo RL's rollouts between a model and an environment: generate, step, observe, until the episode ends.
//!
//! [`MultiTurnAgent`] runs it for the samples of a sweep, each at its own pace or all of a batch together. A [`Prompt`] is
//! read from a row, a `SampleState` is the state of an episode, and [`Rules`] says how versions of NeMo RL differ.

mod episode;
#[cfg(test)]
mod exactness;
mod lockstep;
mod prompt;
mod sample;
mod task_groups;
#[cfg(test)]
mod tests;

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use indexmap::IndexMap;

use self::episode::{Episode, run_sample};
use self::lockstep::{BatchedEpisode, Batcher};
use self::task_groups::TaskGroups;
use super::{Agent, Answer, Needs, Reply, RolloutRequest, Wording, judge};
use crate::config::{DEFAULT_ENVIRONMENT, Driver, GroupFailure, Rules};
use crate::environment::Environment;
use crate::http::Secrets;
use crate::model::{Policy, Tokenizer};
use crate::retry::{Failure, FailureClass};

pub use prompt::{Prompt, PromptError};

/// The parts and settings of a [`MultiTurnAgent`].
#[derive(Debug)]
pub struct MultiTurnOptions {
    /// The model.
    pub policy: Arc<dyn Policy>,
    /// The environments that the model talks to.
    pub environments: Environments,
    /// Counts the tokens of prompts and observations.
    pub tokenizer: Arc<dyn Tokenizer>,
    /// The version of NeMo RL whose rules samples follow.
    pub rules: Rules,
    /// How far a sample may go.
    pub limits: Limits,
    /// The most tokens of one generation, whatever a row asks for.
    pub max_new_tokens: Option<u64>,
    /// The order in which samples take their turns.
    pub driver: Driver,
    /// The most samples of a batch; 1,024 by default. Only lockstep has batches.
    pub batch_size: Option<NonZeroUsize>,
    /// Whether a rollout that fails also fails the others of its task.
    pub group: GroupFailure,
    /// The longest time of the rollouts of one task that are in flight together, from the start of the first.
    pub group_timeout: Option<Duration>,
}

/// NeMo RL's loop between a model and an environment.
#[derive(Debug)]
pub struct MultiTurnAgent {
    options: Arc<MultiTurnOptions>,
    /// Only lockstep has batches.
    batches: Option<Batcher>,
    groups: TaskGroups,
    address: String,
}

impl MultiTurnAgent {
    /// Creates an agent. Sends nothing before the first rollout.
    pub fn new(options: MultiTurnOptions) -> Self {
        let options = Arc::new(options);
        let is_lockstep = options.driver == Driver::Lockstep;
        Self {
            address: options.policy.address(),
            batches: is_lockstep.then(|| Batcher::new(Arc::clone(&options))),
            groups: TaskGroups::new(options.group, options.group_timeout),
            options,
        }
    }

    async fn answer(&self, request: &RolloutRequest) -> Result<Answer, Failure> {
        let episode = Episode::new(&self.options, request)?;
        let body = match &self.batches {
            None => run_sample(&self.options, episode).await?,
            Some(batches) => {
                let (batched, outcome) = BatchedEpisode::new(episode);
                batches.join(batched).await;
                outcome.await.unwrap_or_else(|_| Err(lost()))?
            }
        };
        let wording = Wording {
            failure: &|class, why| failure_of(request, class, why),
            quote: &|_| String::new(),
            // The model and the environments keep secrets out of their texts.
            shown: &|text| Secrets::default().shown(text),
        };
        judge(body.into(), Needs::Reward, &wording)
    }
}

fn failure_of(request: &RolloutRequest, class: FailureClass, why: impl fmt::Display) -> Failure {
    let key = request.key();
    let whose = format!("task {}, rollout {}", key.task_index, key.rollout_index);
    Failure::new(class, format!("{whose}: {why}"))
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
        let result = self.groups.run(request.key(), answer).await;
        Reply {
            elapsed: began.elapsed(),
            ..Reply::new(result)
        }
    }

    fn check_task(&self, request: &str) -> Result<(), String> {
        let row = serde_json::from_str(request).map_err(|error| error.to_string())?;
        let options = &self.options;
        let prompt = Prompt::of(&row, options.max_new_tokens).map_err(|error| error.to_string())?;
        let (_, environment) = options.environments.find(prompt.task_name.as_deref())?;
        environment.check_task(&prompt.extra_env_info, &row)
    }

    fn address(&self) -> &str {
        &self.address
    }
}

/// How far a sample may go.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The most turns.
    pub max_turns: u32,
    /// The number of tokens at which a log is full.
    pub max_seq_len: u64,
}

/// The environments of an agent, by the task name that each of them serves.
#[derive(Debug, Clone, Default)]
pub struct Environments(IndexMap<Arc<str>, Arc<dyn Environment>>);

impl Environments {
    /// Creates a set of these environments.
    pub fn new(environments: impl IntoIterator<Item = (String, Arc<dyn Environment>)>) -> Self {
        let named = environments.into_iter();
        Self(named.map(|(name, it)| (name.into(), it)).collect())
    }

    /// Returns the environment of a task name, and that name. Without a name, returns the only environment. The
    /// environment [`DEFAULT_ENVIRONMENT`] is for tasks that no other one is for.
    ///
    /// # Errors
    /// No environment has this name, or no name is given and there is not exactly one environment.
    pub fn find(
        &self,
        task_name: Option<&str>,
    ) -> Result<(Arc<str>, &Arc<dyn Environment>), String> {
        let found = match task_name {
            Some(name) => self.0.get_key_value(name),
            None => self.0.first().filter(|_| self.0.len() == 1),
        };
        let found = found.map(|(name, environment)| (Arc::clone(name), environment));
        let found = found.or_else(|| {
            let (name, environment) = self.0.get_key_value(DEFAULT_ENVIRONMENT)?;
            Some((
                task_name.map_or_else(|| Arc::clone(name), Arc::from),
                environment,
            ))
        });
        found.ok_or_else(|| {
            let known = self.known();
            match task_name {
                Some(name) => format!(
                    "no environment serves task_name '{name}'. There are: {known}. Add it to the environments of the \
                     agent, or correct the row"
                ),
                None => format!(
                    "the row has no task_name, and there is not exactly one environment. There are: {known}"
                ),
            }
        })
    }

    fn known(&self) -> String {
        let mut names: Vec<&str> = self.0.keys().map(AsRef::as_ref).collect();
        names.sort_unstable();
        if names.is_empty() {
            return "none".into();
        }
        names.join(", ")
    }
}

/// The version of NeMo RL's rollout that a sample follows. The versions differ only in this:
///
/// | | `per-sample` | `per-sample-legacy` | `lockstep`, `lockstep-legacy` |
/// |---|---|---|---|
/// | a generation that hit its length limit ends the sample, after its step | yes | no | no |
/// | such a generation makes the sample truncated | yes | no | `lockstep` |
/// | a generation that fails | fails the sample | ends the sample, which is kept | fails the batch |
/// | an environment that fails | fails the sample | fails the sample | fails the batch |
/// | no room at all for an observation | none of its tokens count | none of its tokens count | failure |
/// | a sample whose observation was cut counts as terminated | no | no | yes |
/// | an environment that names no stop strings | leaves them | leaves them | clears them |
/// | an end in the last turn counts as out of turns | yes | yes | no |
/// | rewards are added in | 64 bit | 64 bit | 32 bit |
impl Rules {
    /// Returns whether a generation that fails ends the sample, which is kept as it is.
    pub fn keeps_sample_without_generation(self) -> bool {
        self == Self::PerSampleLegacy
    }

    /// Returns whether the last column of the table holds.
    pub fn is_lockstep(self) -> bool {
        matches!(self, Self::Lockstep | Self::LockstepLegacy)
    }
}
