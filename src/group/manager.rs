use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::counts::{RolloutCounts, RolloutStats};
use super::prompt::{Sampling, TrainingPrompt, row_index};
use super::{GroupAnswer, GroupPrompt, PromptGroup};
use crate::agent::{Agent, AgentLimits, Agents, Member, RolloutRequest};
use crate::call::{CallLog, RolloutKey};
use crate::config::{AgentKind, GroupFailure, Settings};
use crate::error::Error;
use crate::request::ATTEMPT_INDEX;
use crate::retry::{Backoff, Failure, FailureClass};

/// Options of a [`RolloutManager`]. The defaults are NeMo RL's.
#[derive(Debug, Clone)]
pub struct RolloutOptions {
    /// Rollouts of each prompt.
    pub num_generations: usize,
    /// The sampling parameters.
    pub sampling: Sampling,
    /// Whether a failed rollout fails its group, which is then sent again as a whole. Otherwise the others are kept, and
    /// only the failed ones are sent again.
    pub group: GroupFailure,
    /// The longest time of one try of a group, including the rows that are sent again within it.
    pub group_timeout: Option<Duration>,
    /// The number of failures of network and servers after which a prompt has failed.
    pub max_infra_attempts: u32,
    /// The number of failures that the prompt itself seems to cause after which it has failed.
    pub max_data_attempts: u32,
    /// The most times that a single rollout is sent while the others of its group are kept.
    pub max_row_attempts: u32,
    /// The number of prompts that may fail because they seem to cause failures.
    pub max_skipped_prompts: u64,
    /// The number of prompts in a row that may fail because of network and servers.
    pub max_consecutive_dropped_prompts: u64,
    /// The pause after failures of network and servers. It has no jitter.
    pub backoff: Backoff,
    /// The most groups in flight in a batch.
    pub max_groups: usize,
}

impl Default for RolloutOptions {
    fn default() -> Self {
        Self {
            num_generations: 1,
            sampling: Sampling::default(),
            group: GroupFailure::All,
            group_timeout: None,
            max_infra_attempts: 5,
            max_data_attempts: 2,
            max_row_attempts: 3,
            max_skipped_prompts: 0,
            max_consecutive_dropped_prompts: 0,
            backoff: Backoff {
                base: Duration::from_secs(1),
                cap: Duration::from_secs(30),
            },
            max_groups: 64,
        }
    }
}

/// The reason why a prompt has no group.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RolloutError {
    /// The prompt failed, which the budgets allow: continue with the next.
    #[error("prompt {prompt_idx} failed and is skipped: {}", failure.message)]
    Skipped {
        /// The prompt.
        prompt_idx: i64,
        /// The last failure.
        failure: Failure,
    },
    /// The prompt failed, and exceeds a budget.
    #[error("prompt {prompt_idx} failed, and more prompts than {budget} allows: {}", failure.message)]
    Exhausted {
        /// The prompt.
        prompt_idx: i64,
        /// The name of the budget.
        budget: &'static str,
        /// The last failure.
        failure: Failure,
    },
}

/// Rolls prompts out in groups, for a trainer. Dropping a call drops everything that it has in flight.
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
    member: Member,
    agent_name: String,
    is_native: bool,
    options: RolloutOptions,
    stats: RolloutStats,
}

impl RolloutManager {
    /// Creates a manager for an agent. `is_native`: rollstream runs the agent's turns, and not a server of NeMo Gym.
    /// The default rollout timeout applies.
    pub fn new(
        agent_name: &str,
        agent: Arc<dyn Agent>,
        is_native: bool,
        options: RolloutOptions,
    ) -> Self {
        let limits = AgentLimits::of(agent_name, &Settings::default());
        Self::of(agent_name, Member { agent, limits }, is_native, options)
    }

    fn of(agent_name: &str, member: Member, is_native: bool, options: RolloutOptions) -> Self {
        Self {
            member,
            agent_name: agent_name.to_owned(),
            is_native,
            options,
            stats: RolloutStats::default(),
        }
    }

    /// Creates a manager for an agent of these settings. Their `rollout_timeout` applies; limits and budgets are in
    /// `options`.
    ///
    /// # Errors
    /// The agent can't be set up.
    pub async fn connect(
        settings: &Settings,
        agent_name: &str,
        options: RolloutOptions,
    ) -> Result<Self, Error> {
        let agents = Agents::connect(&[agent_name.to_owned()], settings).await?;
        let member = agents.get(agent_name);
        let member = member.ok_or_else(|| Error::Usage(format!("no agent '{agent_name}'")))?;
        let own = settings.agents.get(agent_name);
        let is_native = own.is_some_and(|own| own.kind == Some(AgentKind::MultiTurn));
        Ok(Self::of(agent_name, member.clone(), is_native, options))
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
                    sleep(self.pause(infra, &failure)).await;
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

    fn pause(&self, failures: u32, failure: &Failure) -> Duration {
        let asked = failure.retry_after.unwrap_or_default();
        self.options.backoff.longest(failures).max(asked)
    }

    async fn attempt(&self, prompt: &TrainingPrompt, number: u32) -> Result<PromptGroup, Failure> {
        let group = self.group(prompt, number);
        let Some(limit) = self.options.group_timeout else {
            return group.await;
        };
        timeout(limit, group).await.unwrap_or_else(|_| {
            let limit = humantime::format_duration(limit);
            let why = format!("prompt {}: no whole group within {limit}", prompt.idx);
            Err(Failure::new(FailureClass::Timeout, why))
        })
    }

    /// Returns whether a failed rollout leaves the others of its group. A row of NeMo Gym is an episode of its own.
    fn keeps_others(&self) -> bool {
        self.options.group == GroupFailure::Each || !self.is_native
    }

    async fn group(&self, prompt: &TrainingPrompt, number: u32) -> Result<PromptGroup, Failure> {
        let count = self.options.num_generations;
        let mut answers: Vec<Option<(u32, Bytes)>> = vec![None; count];
        let rows = self.options.max_row_attempts.max(1);
        let tries = if self.keeps_others() { rows } else { 1 };
        let mut last: Option<Failure> = None;
        for number_of_row in 0..tries {
            let sent: Vec<usize> = (0..count)
                .filter(|row| answers.get(*row).is_some_and(Option::is_none))
                .collect();
            if sent.is_empty() {
                break;
            }
            if number_of_row > 0 {
                self.stats.rows_redispatched(sent.len() as u64);
            }
            if let Some(failure) = &last {
                sleep(self.pause(number_of_row, failure)).await;
            }
            let attempt = number * tries + number_of_row;
            last = self.send(prompt, &sent, attempt, &mut answers).await?;
        }
        let is_short = answers.iter().any(Option::is_none);
        let needs_all = self.options.group == GroupFailure::All;
        if let Some(failure) = last.filter(|_| is_short)
            && (needs_all || answers.iter().all(Option::is_none))
        {
            return Err(failure);
        }
        self.together(prompt, &answers)
    }

    /// Sends some rows. Returns the last failure that may be retried, if there was one.
    ///
    /// # Errors
    /// A failure that fails the group, whose rollouts in flight are dropped.
    async fn send(
        &self,
        prompt: &TrainingPrompt,
        sent: &[usize],
        attempt: u32,
        answers: &mut [Option<(u32, Bytes)>],
    ) -> Result<Option<Failure>, Failure> {
        let data = |why: String| Failure::new(FailureClass::Data, why);
        let mut calls = JoinSet::new();
        for &row in sent {
            let member = self.member.clone();
            let request = self.request(prompt, row, attempt)?;
            calls.spawn(async move { (row, member.run(request).await.result) });
        }
        let mut last = None;
        while let Some(joined) = calls.join_next().await {
            let (sent_as, result) =
                joined.map_err(|error| data(format!("a rollout ended in a defect: {error}")))?;
            match result {
                Ok(answer) => {
                    let row = if self.is_native {
                        sent_as
                    } else {
                        let value: Value = serde_json::from_slice(&answer.body)
                            .map_err(|source| data(source.to_string()))?;
                        let is_answered =
                            |row: usize| answers.get(row).is_some_and(Option::is_some);
                        row_index(&value, sent_as, sent, is_answered, answers.len())
                            .map_err(data)?
                    };
                    if let Some(place) = answers.get_mut(row) {
                        // Copied, because the rest of the group may wait for the memory that the answer holds.
                        *place = Some((attempt, Bytes::copy_from_slice(&answer.body)));
                    }
                }
                Err(failure) => {
                    let needs_all = self.options.group == GroupFailure::All;
                    if !self.keeps_others() || needs_all && !failure.class.is_transient() {
                        return Err(failure);
                    }
                    last = Some(failure);
                }
            }
        }
        Ok(last)
    }

    fn request(
        &self,
        prompt: &TrainingPrompt,
        row: usize,
        attempt: u32,
    ) -> Result<RolloutRequest, Failure> {
        let sampling = &self.options.sampling;
        let mut body = if self.is_native {
            prompt.native_row(row, sampling)
        } else {
            let row = prompt.gym_row(&self.agent_name, row, sampling);
            row.map_err(|why| {
                let why = format!("prompt {}: {why}", prompt.idx);
                Failure::new(FailureClass::Data, why)
            })?
        };
        if let Some(row) = body.as_object_mut().filter(|_| attempt > 0) {
            row.insert(ATTEMPT_INDEX.into(), attempt.into());
        }
        let rollout_index = i64::try_from(row).unwrap_or(i64::MAX);
        let key = RolloutKey::new(prompt.idx, rollout_index, attempt);
        Ok(RolloutRequest {
            body: Bytes::from(body.to_string()),
            calls: CallLog::new(key, None),
        })
    }

    fn together(
        &self,
        prompt: &TrainingPrompt,
        answers: &[Option<(u32, Bytes)>],
    ) -> Result<PromptGroup, Failure> {
        let head = GroupPrompt {
            task_index: prompt.idx,
            agent_name: self.agent_name.clone(),
            prompt_idx: prompt.idx,
            task_name: prompt.task_name.clone(),
            message_log: prompt.message_log.clone(),
            extra_env_info: prompt.extra_env_info.clone(),
            num_rollouts: self.options.num_generations as u64,
        };
        let answers: Vec<GroupAnswer<'_>> = (0..)
            .zip(answers)
            .filter_map(|(rollout_index, answer)| {
                let (attempt, body) = answer.as_ref()?;
                Some(GroupAnswer {
                    key: RolloutKey::new(prompt.idx, rollout_index, *attempt),
                    text: std::str::from_utf8(body).ok()?,
                })
            })
            .collect();
        PromptGroup::new(head, &answers)
            .map_err(|error| Failure::new(FailureClass::Data, error.to_string()))
    }
}
