use std::sync::Arc;

use futures::{Stream, StreamExt, stream};
use serde_json::{Map, Value};
use tokio::time::{sleep, timeout};

use super::dispatch::{DispatchRow, Dispatcher, Ended, data, remove_attempt};
use super::gym;
use super::metrics::{batch_metrics, gym_metrics};
use super::prompt::TrainingPrompt;
use super::stats::{RolloutCounts, RolloutStats, Timings};
use super::{
    Completion, GroupPrompt, PromptGroup, RolloutError, RolloutOptions, RolloutOptionsError,
};
use crate::agent::{Agent, AgentLimits, Agents, Member};
use crate::call::RolloutKey;
use crate::config::{AgentKind, Driver, GroupFailure, MemoryPlan, Settings};
use crate::error::Error;
use crate::json;
use crate::retry::{Failure, FailureClass};

/// The groups of a batch of prompts.
#[derive(Debug, Clone, PartialEq)]
pub struct RolloutBatch {
    /// The groups in the order of their prompts, without the prompts that were skipped.
    pub groups: Vec<PromptGroup>,
    /// The metrics of all rollouts together, under the names of NeMo RL's functions for batches.
    pub rollout_metrics: Map<String, Value>,
}

/// Rolls prompts out in groups, for a trainer. Dropping the future of a method cancels its calls in flight.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use rollstream::config::Settings;
/// use rollstream::model::Message;
/// use rollstream::sim::{Sim, SimConfig};
/// use rollstream::{RolloutManager, RolloutOptions, TrainingPrompt};
///
/// let sim = Sim::start(SimConfig::default()).await?;
/// let settings: Settings = serde_json::from_value(serde_json::json!({"agents": {"policy": {
///     "kind": "multi-turn",
///     "model_url": sim.model_url(),
///     "environments": {"sum": {"kind": "numeric"}},
/// }}}))?;
/// let options = RolloutOptions { num_generations: 4, ..RolloutOptions::default() };
/// let manager = RolloutManager::connect(&settings, "policy", options).await?;
/// let group = manager
///     .run_rollout(TrainingPrompt {
///         idx: 7,
///         message_log: vec![Message::text("user", "What is 2 + 3?")],
///         extra_env_info: serde_json::json!({"expected_answer": 5}),
///         task_name: Some("sum".into()),
///         stop_strings: None,
///     })
///     .await?;
/// assert_eq!(group.completions.len(), 4);
/// assert_eq!(manager.counts().committed_total, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct RolloutManager {
    dispatcher: Dispatcher,
    agent_name: String,
    is_native: bool,
    driver: Driver,
    options: RolloutOptions,
    stats: RolloutStats,
}

impl RolloutManager {
    /// Creates a manager for an agent. `is_native` says that rollstream runs the agent's turns itself, not NeMo Gym; the
    /// agent's own limits of turns and tokens then apply. The default rollout timeout applies.
    ///
    /// # Errors
    /// The agent can't follow the options.
    pub fn new(
        agent_name: &str,
        agent: Arc<dyn Agent>,
        is_native: bool,
        options: RolloutOptions,
    ) -> Result<Self, RolloutOptionsError> {
        options.check(is_native)?;
        let settings = Settings::default();
        let limits = AgentLimits::of(agent_name, &settings);
        let mut agents = Agents::default();
        agents.insert(agent_name, Member { agent, limits });
        Ok(Self::of(agent_name, agents, is_native, &settings, options))
    }

    fn of(
        agent_name: &str,
        mut agents: Agents,
        is_native: bool,
        settings: &Settings,
        options: RolloutOptions,
    ) -> Self {
        if let Some(mut member) = agents.get(agent_name).cloned() {
            member.limits.budgets = options.budgets(is_native);
            agents.insert(agent_name, member);
        }
        let driver = settings.agents.get(agent_name).and_then(|own| own.driver);
        Self {
            dispatcher: Dispatcher {
                agents,
                memory: MemoryPlan::of(settings),
                most_calls: options.num_generations * options.max_groups.max(1),
                backoff: options.backoff,
                as_given: !is_native,
                registry: Arc::default(),
                progress: Arc::default(),
            },
            agent_name: agent_name.to_owned(),
            is_native,
            driver: driver.unwrap_or_default(),
            options,
            stats: RolloutStats::default(),
        }
    }

    /// Creates a manager for an agent of these settings. Their `rollout_timeout` and the agent's limits of calls in
    /// flight and of rates apply; budgets are in `options`.
    ///
    /// # Errors
    /// The agent can't be set up, or can't follow the options.
    pub async fn connect(
        settings: &Settings,
        agent_name: &str,
        options: RolloutOptions,
    ) -> Result<Self, Error> {
        let mut settings = settings.clone();
        let own = settings.agents.get_mut(agent_name);
        let own = own.filter(|own| own.kind == Some(AgentKind::MultiTurn));
        let is_native = own.is_some();
        options.check(is_native)?;
        if let Some(own) = own {
            own.max_seq_len = options.max_seq_len.or(own.max_seq_len);
            own.max_turns = options.max_rollout_turns.or(own.max_turns);
        }
        let agents = Agents::connect(&[agent_name.to_owned()], &settings).await?;
        Ok(Self::of(agent_name, agents, is_native, &settings, options))
    }

    /// Returns the counts of retries so far.
    pub fn counts(&self) -> RolloutCounts {
        self.stats.counts()
    }

    /// Rolls prompts out, [`max_groups`](RolloutOptions::max_groups) at a time. Groups come in the order in which
    /// they are finished, and name their prompt.
    pub fn run_batch<I>(&self, prompts: I) -> impl Stream<Item = Result<PromptGroup, RolloutError>>
    where
        I: IntoIterator<Item = TrainingPrompt>,
    {
        stream::iter(prompts)
            .map(|prompt| self.run_rollout(prompt))
            .buffer_unordered(self.options.max_groups.max(1))
    }

    /// Rolls a batch of prompts out, and computes its metrics. A prompt that fails within the budgets is left out.
    ///
    /// # Errors
    /// A prompt failed, and exceeds a budget.
    pub async fn run_rollouts<I>(&self, prompts: I) -> Result<RolloutBatch, RolloutError>
    where
        I: IntoIterator<Item = TrainingPrompt>,
    {
        let mut timings = Timings::start();
        let most = self.options.max_groups.max(1);
        let results = stream::iter(prompts).map(|prompt| self.run_rollout(prompt));
        let mut results = results.buffered(most);
        let mut groups = Vec::new();
        while let Some(result) = timings.awaiting(results.next()).await {
            match result {
                Ok(group) => groups.push(group),
                Err(RolloutError::Skipped { .. }) => {}
                Err(exhausted) => return Err(exhausted),
            }
        }
        drop(results);
        timings.rolled_out();
        let completions = groups.iter().flat_map(|group| &group.completions);
        let rollout_metrics = if self.is_native {
            batch_metrics(completions.filter_map(|it| it.sample.as_ref()), self.driver)
        } else {
            let has_full_results = self.options.gym.log_full_result_tables;
            let mut metrics = gym_metrics(&self.agent_name, completions, has_full_results);
            timings.add_to(&mut metrics, "aggregate_metrics");
            metrics
        };
        Ok(RolloutBatch {
            groups,
            rollout_metrics,
        })
    }

    /// Rolls a prompt out.
    ///
    /// # Errors
    /// The prompt failed.
    pub async fn run_rollout(&self, prompt: TrainingPrompt) -> Result<PromptGroup, RolloutError> {
        let prompt_idx = prompt.idx;
        let (mut infra, mut data) = (0, 0);
        loop {
            let failure = match self.attempt(&prompt, infra + data).await {
                Ok(group) => {
                    self.stats.committed();
                    return Ok(group);
                }
                Err(failure) => failure,
            };
            let (is_allowed, budget) = if failure.class.is_transient() {
                infra += 1;
                if infra < self.options.max_infra_attempts {
                    self.stats.redispatched(&failure);
                    sleep(self.options.backoff.longest(infra)).await;
                    continue;
                }
                let most = self.options.max_consecutive_dropped_prompts;
                let is_allowed = self.stats.infra_dropped(&failure, most);
                (is_allowed, "max_consecutive_dropped_prompts")
            } else {
                data += 1;
                if data < self.options.max_data_attempts {
                    self.stats.data_retried(&failure);
                    continue;
                }
                let most = self.options.max_skipped_prompts;
                let is_allowed = self.stats.data_failed(&failure, most);
                (is_allowed, "max_skipped_prompts")
            };
            return Err(if is_allowed {
                RolloutError::Skipped {
                    prompt_idx,
                    failure,
                }
            } else {
                RolloutError::Exhausted {
                    prompt_idx,
                    budget,
                    failure,
                }
            });
        }
    }

    async fn attempt(&self, prompt: &TrainingPrompt, number: u32) -> Result<PromptGroup, Failure> {
        let group = self.group(prompt, number);
        let Some(limit) = self.options.group_timeout else {
            return group.await;
        };
        timeout(limit, group).await.unwrap_or_else(|_| {
            let limit = humantime::format_duration(limit);
            let why = format!(
                "prompt {}: the group is not complete after {limit}",
                prompt.idx
            );
            Err(Failure::new(FailureClass::Timeout, why))
        })
    }

    /// Sends all rollouts of a prompt and gathers their answers. Dropping the future cancels the calls in flight.
    async fn group(&self, prompt: &TrainingPrompt, number: u32) -> Result<PromptGroup, Failure> {
        let mut timings = Timings::start();
        let mut answers: Vec<Option<Completion>> = vec![None; self.options.num_generations];
        let needs_all = self.options.group == GroupFailure::All;
        let first_attempt = number * self.options.max_row_attempts;
        let mut last = None;
        let rows = self.rows(prompt)?;
        let mut outcomes = self.dispatcher.run(&rows, first_attempt).map_err(data)?;
        while let Some(batch) = timings.awaiting(outcomes.next()).await {
            for ended in batch.and_then(|batch| Ended::rows(&batch)).map_err(data)? {
                self.stats
                    .rows_redispatched(u64::from(ended.attempt > first_attempt));
                let Some(answer) = &ended.result else {
                    let failure = ended.failure();
                    if needs_all && (ended.terminal || failure.class.leaves_pending()) {
                        return Err(failure);
                    }
                    last = Some(failure);
                    continue;
                };
                let (row, completion) = timings.reading(|| self.read(prompt, &ended, answer))?;
                if let Some(place) = answers.get_mut(row) {
                    *place = Some(completion);
                }
            }
        }
        let is_short = answers.iter().any(Option::is_none);
        if let Some(failure) = last.filter(|_| is_short)
            && (needs_all || answers.iter().all(Option::is_none))
        {
            return Err(failure);
        }
        timings.rolled_out();
        let mut group = self.together(prompt, answers.into_iter().flatten().collect());
        if self.is_native {
            timings.add_to(&mut group.rollout_metrics, "aggregate_metrics");
        } else {
            timings.add_rows_to(&mut group.rollout_metrics);
            timings.add_to(&mut group.rollout_metrics, "compute_metrics");
        }
        Ok(group)
    }

    /// Returns the rollouts of a prompt as the run operator takes them.
    fn rows(&self, prompt: &TrainingPrompt) -> Result<Vec<DispatchRow<'_>>, Failure> {
        let (count, sampling) = (self.options.num_generations, &self.options.sampling);
        let request = |row| {
            if self.is_native {
                return Ok(prompt.native_row(sampling));
            }
            prompt.gym_row(&self.agent_name, row, sampling)
        };
        let row = |row: usize| {
            let request =
                request(row).map_err(|why| data(format!("prompt {}: {why}", prompt.idx)))?;
            Ok(DispatchRow {
                task_index: prompt.idx,
                rollout_index: row as i64,
                agent_name: &self.agent_name,
                request: request.to_string(),
            })
        };
        (0..count).map(row).collect()
    }

    /// Reads an answer, and returns its row.
    fn read(
        &self,
        prompt: &TrainingPrompt,
        ended: &Ended,
        answer: &str,
    ) -> Result<(usize, Completion), Failure> {
        let value = json::value(answer);
        let mut value = value.ok_or_else(|| data("the answer is not JSON"))?;
        let key = RolloutKey::new(prompt.idx, ended.rollout_index, ended.attempt);
        let row = usize::try_from(ended.rollout_index).unwrap_or(usize::MAX);
        let mut completion = if self.is_native {
            Completion::native(key, value).map_err(data)?
        } else {
            remove_attempt(&prompt.extra_env_info, &mut value, ended.attempt);
            let options = &self.options.gym;
            let log = &prompt.message_log;
            let read = gym::completion(key, log, value, options, self.options.max_seq_len);
            let refuse = |why| {
                data(format!(
                    "the answer of prompt {}, rollout {row}, can't be used: {why}",
                    prompt.idx
                ))
            };
            read.map_err(refuse)?
        };
        if !self.options.sampling.include_logprobs {
            completion
                .message_log
                .iter_mut()
                .for_each(|message| message.logprobs = None);
        }
        Ok((row, completion))
    }

    fn together(&self, prompt: &TrainingPrompt, completions: Vec<Completion>) -> PromptGroup {
        let head = GroupPrompt {
            task_index: prompt.idx,
            agent_name: self.agent_name.clone(),
            prompt_idx: prompt.idx,
            task_name: prompt.task_name.clone(),
            message_log: prompt.message_log.clone(),
            extra_env_info: prompt.extra_env_info.clone(),
            num_rollouts: self.options.num_generations as u64,
        };
        PromptGroup::of(head, completions, &self.options.gym)
    }
}
