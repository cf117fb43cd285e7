use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::sample::SampleState;
use super::{MultiTurnOptions, Prompt, failure_of};
use crate::agent::RolloutRequest;
use crate::call::{CallLog, CookieJar};
use crate::environment::{self, Environment, Step, StepResult};
use crate::model::GenerationRequest;
use crate::retry::{Failure, FailureClass};

/// A sample, its model and its environment.
#[derive(Debug)]
pub struct Episode {
    sample: SampleState,
    row: Value,
    prompt_idx: i64,
    sampling: Map<String, Value>,
    task_name: Arc<str>,
    environment: Arc<dyn Environment>,
    calls: CallLog,
    cookies: CookieJar,
    /// The number of the current turn.
    turn: u32,
}

impl Episode {
    /// Creates the episode of a rollout. Sends nothing.
    ///
    /// # Errors
    /// The row is no prompt, or no environment serves it.
    pub fn new(options: &MultiTurnOptions, request: &RolloutRequest) -> Result<Self, Failure> {
        let refuse = |why: &dyn fmt::Display| failure_of(request, FailureClass::Data, why);
        let row: Value = serde_json::from_slice(&request.body).map_err(|error| refuse(&error))?;
        let mut prompt =
            Prompt::of(&row, options.max_new_tokens).map_err(|error| refuse(&error))?;
        let found = options.environments.find(prompt.task_name.as_deref());
        let (task_name, environment) = found.map_err(|error| refuse(&error))?;
        let tokenizer = &*options.tokenizer;
        Ok(Self {
            sample: SampleState::new(&mut prompt, options.rules, &options.limits, tokenizer),
            row,
            prompt_idx: prompt.idx,
            sampling: prompt.sampling,
            task_name,
            environment: Arc::clone(environment),
            calls: request.calls.clone(),
            cookies: CookieJar::default(),
            turn: 0,
        })
    }

    /// Begins the episode at its environment.
    ///
    /// # Errors
    /// The request to the environment failed.
    pub async fn begin(&mut self, options: &MultiTurnOptions) -> Result<(), Failure> {
        let begin = self.environment.begin(&self.row, &self.calls);
        let begun = begin.await.map_err(|failure| self.step_failed(failure))?;
        self.cookies = begun.cookies;
        if let Some(observation) = begun.observation {
            self.sample
                .observed_at_the_start(observation, &*options.tokenizer);
        }
        Ok(())
    }

    /// Returns whether the episode takes another turn.
    pub fn goes_on(&self) -> bool {
        self.sample.goes_on()
    }

    /// Begins a turn and asks the model for a generation, after which the sample may have ended.
    ///
    /// # Errors
    /// The model returned no generation, and the rules do not keep such a sample.
    pub async fn generate(
        &mut self,
        options: &MultiTurnOptions,
    ) -> Result<AfterGeneration, Failure> {
        self.turn = self.sample.begin_turn();
        let request = GenerationRequest {
            turn: self.turn,
            messages: self.sample.log(),
            sampling: &self.sampling,
            stop_strings: self.sample.stop_strings(),
        };
        let generate = options.policy.generate(request, &self.calls);
        match generate.await {
            Ok(generation) => {
                self.sample.generated(generation, &*options.tokenizer);
                Ok(AfterGeneration::Step)
            }
            Err(failure)
                if options.rules.keeps_sample_without_generation()
                    && of_the_other_side(failure.class) =>
            {
                self.sample.give_up();
                Ok(AfterGeneration::End)
            }
            Err(failure) => Err(self.generation_failed(failure)),
        }
    }

    /// Returns the environment that takes this turn's step.
    pub fn environment(&self) -> &Arc<dyn Environment> {
        &self.environment
    }

    /// Returns the task name.
    pub fn task_name(&self) -> &Arc<str> {
        &self.task_name
    }

    /// Returns the sample that the environment is sent in this turn.
    pub fn as_sample(&mut self) -> environment::Sample<'_> {
        environment::Sample {
            log: &self.calls,
            step: Step {
                turn: self.turn,
                task_name: &self.task_name,
                row: &self.row,
                messages: self.sample.log(),
                metadata: self.sample.env_info(),
            },
            cookies: &mut self.cookies,
        }
    }

    /// Adds the environment's answer to this turn.
    ///
    /// # Errors
    /// The answer can't be used.
    pub fn stepped(
        &mut self,
        options: &MultiTurnOptions,
        result: StepResult,
    ) -> Result<(), Failure> {
        let taken = self.sample.stepped(result, &*options.tokenizer);
        taken.map_err(|error| self.step_failed(Failure::new(FailureClass::Data, error)))
    }

    /// Returns the failure of a step, with the name of the sample after its cause: a table may cut the end off.
    pub fn step_failed(&self, failure: Failure) -> Failure {
        if !of_the_other_side(failure.class) {
            return failure;
        }
        let (cause, environment, key) = (&failure.message, &self.task_name, self.calls.key());
        let message = format!("{cause} (step of environment '{environment}', rollout {key})");
        Failure { message, ..failure }
    }

    /// Returns the answer of the ended rollout, as JSON text.
    pub fn into_answer(self) -> Vec<u8> {
        self.sample.into_answer(&self.row, &self.task_name)
    }

    fn generation_failed(&self, failure: Failure) -> Failure {
        match failure.class {
            FailureClass::Data => self.failed(failure, "generation failed"),
            FailureClass::Infra | FailureClass::Timeout => {
                self.failed(failure, "generation unavailable")
            }
            _ => failure,
        }
    }

    fn failed(&self, failure: Failure, what: &str) -> Failure {
        if !of_the_other_side(failure.class) {
            return failure;
        }
        let prompt_idx = self.prompt_idx;
        let traj_idx = self.calls.key().rollout_index;
        let message = &failure.message;
        Failure {
            message: format!("{what} for prompt_idx={prompt_idx} traj_idx={traj_idx}: {message}"),
            ..failure
        }
    }
}

/// The next step after a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterGeneration {
    /// The environment's step.
    Step,
    /// Nothing: the sample stays as it is.
    End,
}

/// Returns whether a failure is the model's or the environment's, and not due to our own end or journal.
fn of_the_other_side(class: FailureClass) -> bool {
    matches!(
        class,
        FailureClass::Data | FailureClass::Infra | FailureClass::Timeout
    )
}

/// Runs one sample at its own pace to its end, and returns its answer.
///
/// # Errors
/// The model or the environment failed.
pub async fn run_sample(
    options: &MultiTurnOptions,
    mut episode: Episode,
) -> Result<Vec<u8>, Failure> {
    if episode.goes_on() {
        episode.begin(options).await?;
    }
    while episode.goes_on() {
        if episode.generate(options).await? == AfterGeneration::End {
            break;
        }
        let environment = episode.environment().clone();
        let samples = &mut [episode.as_sample()];
        let step = environment.step(samples);
        let mut results = step.await.map_err(|failure| episode.step_failed(failure))?;
        let (Some(result), true) = (results.pop(), results.is_empty()) else {
            let why = "the environment did not give exactly one result for one sample";
            return Err(episode.step_failed(Failure::new(FailureClass::Data, why)));
        };
        let result = result.map_err(|failure| episode.step_failed(failure))?;
        episode.stepped(options, result)?;
    }
    Ok(episode.into_answer())
}
