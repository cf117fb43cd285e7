use std::fmt::Debug;

use async_trait::async_trait;
use serde_json::Value;

use crate::model::Message;
use crate::retry::Failure;
use crate::turn::{CookieJar, TurnLog};

/// What answers a model: it observes, scores, and says when an episode ends.
#[async_trait]
pub trait Environment: Debug + Send + Sync {
    /// Begins an episode. What it sets goes with every step of this sample.
    ///
    /// # Errors
    /// The environment could not be asked.
    async fn begin(&self, row: &Value, log: &TurnLog) -> Result<Begun, Failure> {
        let _ = (row, log);
        Ok(Begun::default())
    }

    /// Takes one step with every sample of a batch. The results are in the order of the samples.
    ///
    /// # Errors
    /// The environment could not be asked, or its answer does not fit the batch.
    async fn step(&self, samples: &mut [Sample<'_>]) -> Stepped;

    /// Where it is, without secrets, for people to read.
    fn address(&self) -> String;
}

/// What becomes of a step: the results of the samples in their order, each of which may have failed for
/// itself; or why none of them has one.
pub type Stepped = Result<Vec<Result<StepResult, Failure>>, Failure>;

/// How an episode begins.
#[derive(Debug, Default)]
pub struct Begun {
    /// What the environment set.
    pub cookies: CookieJar,
    /// What it says before the first turn.
    pub observation: Option<Message>,
}

/// A sample of a step.
#[derive(Debug)]
pub struct Sample<'a> {
    /// Where its calls are noted; a call for a whole batch is noted with its first sample, and the
    /// others have a row of their own that names the same time.
    pub log: &'a TurnLog,
    /// What to send of it.
    pub step: Step<'a>,
    /// What the environment set before.
    pub cookies: &'a mut CookieJar,
}

/// What an environment is told of a sample.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// Number of the turn, from 1.
    pub turn: u32,
    /// Name of the task's kind.
    pub task_name: &'a str,
    /// The row that the rollout was asked for with.
    pub row: &'a Value,
    /// The conversation so far.
    pub messages: &'a [Message],
    /// What the environment said the time before, or the prompt's `extra_env_info`.
    pub metadata: &'a Value,
}

/// What an environment answers for a sample.
#[derive(Debug, Clone, PartialEq)]
pub struct StepResult {
    /// What the model is to see.
    pub observation: Message,
    /// What the environment wants to hear again; null leaves what there was.
    pub metadata: Value,
    /// Texts that are to end the next generation; none leaves what there was.
    pub next_stop_strings: Option<Vec<String>>,
    /// The reward of this step.
    pub reward: f64,
    /// The episode is over.
    pub terminated: bool,
    /// The episode was cut short.
    pub truncated: bool,
    /// What the environment took for the answer.
    pub answer: Option<String>,
}
