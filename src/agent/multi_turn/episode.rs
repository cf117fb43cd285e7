use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::timeout;

use super::sample::Sample;
use super::{Environments, Limits, Prompt, answer};
use crate::agent::RolloutRequest;
use crate::config::Rules;
use crate::environment::{self, Environment, Step, StepResult};
use crate::model::{GenerationRequest, Policy, Tokenizer};
use crate::retry::{Failure, FailureClass};
use crate::turn::{CookieJar, RolloutKey, TurnLog};

/// What all samples of an agent have in common.
#[derive(Debug)]
pub struct Setup {
    pub policy: Arc<dyn Policy>,
    pub environments: Environments,
    pub tokenizer: Arc<dyn Tokenizer>,
    pub rules: Rules,
    pub limits: Limits,
    pub max_new_tokens: Option<u64>,
}

/// A sample, and those that it talks to.
#[derive(Debug)]
pub struct Episode {
    sample: Sample,
    row: Value,
    prompt_idx: i64,
    sampling: Map<String, Value>,
    task_name: Arc<str>,
    environment: Arc<dyn Environment>,
    turns: TurnLog,
    cookies: CookieJar,
    /// Number of the turn that it is in.
    turn: u32,
}

impl Episode {
    /// The episode of a rollout. Nothing is sent.
    ///
    /// # Errors
    /// The row is no prompt, or no environment serves it.
    pub fn new(setup: &Setup, request: &RolloutRequest) -> Result<Self, Failure> {
        let RolloutKey {
            task_index,
            rollout_index,
            ..
        } = request.key();
        let refuse = |why: &dyn fmt::Display| {
            let whose = format!("task {task_index}, rollout {rollout_index}");
            Failure::new(FailureClass::Data, format!("{whose}: {why}"))
        };
        let row: Value = serde_json::from_slice(&request.body).map_err(|error| refuse(&error))?;
        let mut prompt = Prompt::of(&row, setup.max_new_tokens).map_err(|error| refuse(&error))?;
        let found = setup.environments.find(prompt.task_name.as_deref());
        let (task_name, environment) = found.map_err(|error| refuse(&error))?;
        let tokenizer = &*setup.tokenizer;
        Ok(Self {
            sample: Sample::new(&mut prompt, setup.rules, &setup.limits, tokenizer),
            row,
            prompt_idx: prompt.idx,
            sampling: prompt.sampling,
            task_name: Arc::clone(task_name),
            environment: Arc::clone(environment),
            turns: request.turns.clone(),
            cookies: CookieJar::default(),
            turn: 0,
        })
    }

    /// Begins the episode at its environment.
    ///
    /// # Errors
    /// The environment could not be asked.
    pub async fn begin(&mut self, setup: &Setup) -> Result<(), Failure> {
        let begin = self.environment.begin(&self.row, &self.turns);
        let begun = within(setup.limits.step_timeout, "step_timeout", begin).await;
        let begun = begun.map_err(|failure| self.step_failed(failure))?;
        self.cookies = begun.cookies;
        if let Some(observation) = begun.observation {
            self.sample
                .observed_at_the_start(observation, &*setup.tokenizer);
        }
        Ok(())
    }

    /// It takes another turn.
    pub fn goes_on(&self) -> bool {
        self.sample.goes_on()
    }

    /// Begins a turn and has the model generate. The sample may have ended afterwards.
    ///
    /// # Errors
    /// The model gave no generation, and the rules don't keep the sample then.
    pub async fn generate(&mut self, setup: &Setup) -> Result<Next, Failure> {
        self.turn = self.sample.begin_turn();
        let request = GenerationRequest {
            turn: self.turn,
            messages: self.sample.log(),
            sampling: &self.sampling,
            stop_strings: self.sample.stop_strings(),
        };
        let generate = setup.policy.generate(request, &self.turns);
        let generation = within(
            setup.limits.generation_timeout,
            "generation_timeout",
            generate,
        )
        .await;
        match generation {
            Ok(generation) => {
                self.sample.generated(generation, &*setup.tokenizer);
                Ok(Next::Step)
            }
            Err(failure)
                if setup.rules.keeps_sample_without_generation()
                    && of_the_other_side(failure.class) =>
            {
                self.sample.give_up();
                Ok(Next::End)
            }
            Err(failure) => Err(self.generation_failed(failure)),
        }
    }

    /// The environment that takes this turn's step.
    pub fn environment(&self) -> &Arc<dyn Environment> {
        &self.environment
    }

    /// Name of the task's kind.
    pub fn task_name(&self) -> &Arc<str> {
        &self.task_name
    }

    /// What the environment is sent in this turn.
    pub fn as_sample(&mut self) -> environment::Sample<'_> {
        environment::Sample {
            log: &self.turns,
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

    /// Takes what the environment answered in this turn.
    ///
    /// # Errors
    /// It can't be taken.
    pub fn stepped(&mut self, setup: &Setup, result: StepResult) -> Result<(), Failure> {
        let taken = self.sample.stepped(result, &*setup.tokenizer);
        taken.map_err(|error| self.step_failed(Failure::new(FailureClass::Data, error.to_string())))
    }

    /// The failure of a step, with the name of the sample.
    pub fn step_failed(&self, failure: Failure) -> Failure {
        let environment = &self.task_name;
        let what = format!("step of environment '{environment}' failed");
        self.failed(failure, &what)
    }

    /// The answer of a rollout that is over, as JSON text.
    pub fn into_answer(self) -> Vec<u8> {
        answer::body(&self.sample, &self.row, &self.task_name)
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
        let traj_idx = self.turns.key().rollout_index;
        let message = &failure.message;
        Failure {
            message: format!("{what} for prompt_idx={prompt_idx} traj_idx={traj_idx}: {message}"),
            ..failure
        }
    }
}

/// What comes after a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The environment's step.
    Step,
    /// Nothing: the sample stays as it is.
    End,
}

/// Our own end and journal say nothing about a model or an environment.
fn of_the_other_side(class: FailureClass) -> bool {
    matches!(
        class,
        FailureClass::Data | FailureClass::Infra | FailureClass::Timeout
    )
}

/// Waits for `work`, at most as long as the setting `name` says.
///
/// # Errors
/// The work's own, or that it took longer.
pub async fn within<T>(
    limit: Option<Duration>,
    name: &str,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let Some(limit) = limit else {
        return work.await;
    };
    timeout(limit, work).await.unwrap_or_else(|_| {
        let limit = humantime::format_duration(limit);
        let why = format!("not done within {limit} ({name})");
        Err(Failure::new(FailureClass::Timeout, why))
    })
}
