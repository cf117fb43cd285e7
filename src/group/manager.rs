use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execute_stream;
use datafusion::prelude::SessionConfig;
use futures::{Stream, StreamExt, stream};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::counts::{RolloutCounts, RolloutStats};
use super::prompt::{Sampling, TrainingPrompt, row_index};
use super::{GroupAnswer, GroupPrompt, PromptGroup};
use crate::agent::{Agent, AgentLimits, Agents, Member};
use crate::call::RolloutKey;
use crate::config::{AgentKind, GroupFailure, MemoryPlan, Settings};
use crate::error::Error;
use crate::progress::Progress;
use crate::retry::{Backoff, Budgets, Failure, FailureClass, Prior};
use crate::run::{FailureLimits, Registry, RunContext, RunExec, RunStep, Shutdown};
use crate::schema;
use crate::session::row;

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
    /// The time limit of one try of a group, including the retries of its rows.
    pub group_timeout: Option<Duration>,
    /// The number of failures of network and servers after which a prompt has failed.
    pub max_infra_attempts: u32,
    /// The number of failures that the prompt itself seems to cause after which it has failed.
    pub max_data_attempts: u32,
    /// The largest number of attempts at a single rollout while the others of its group are kept.
    pub max_row_attempts: u32,
    /// The number of prompts that may fail because they seem to cause failures.
    pub max_skipped_prompts: u64,
    /// The number of consecutive prompts that may fail because of network and servers.
    pub max_consecutive_dropped_prompts: u64,
    /// The pause after failures of network and servers; the pause of a single rollout has jitter.
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

impl RolloutOptions {
    /// Returns how many attempts at one rollout may fail within a try of its group. In a group that needs all of its
    /// rollouts, a failure that another attempt can't mend fails the group at once, and so does any failure of a native
    /// agent. A row of NeMo Gym is an independent episode, which is retried alone.
    fn budgets(&self, is_native: bool) -> Budgets {
        let most = self.max_row_attempts.max(1);
        let (all, data) = match (self.group, is_native) {
            (GroupFailure::Each, _) => (most, most),
            (GroupFailure::All, false) => (most, 1),
            (GroupFailure::All, true) => (1, 1),
        };
        Budgets {
            infra: all,
            rate_limit: all,
            data,
            attempts: data,
            all,
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
    #[error("prompt {prompt_idx} failed, and more prompts have failed than {budget} allows: {}", failure.message)]
    Exhausted {
        /// The prompt.
        prompt_idx: i64,
        /// The name of the budget.
        budget: &'static str,
        /// The last failure.
        failure: Failure,
    },
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
    agents: Agents,
    agent_name: String,
    is_native: bool,
    options: RolloutOptions,
    memory: MemoryPlan,
    /// Holds the limits of rates and of calls in flight, over all groups.
    registry: Arc<Registry>,
    progress: Arc<Progress>,
    stats: RolloutStats,
}

impl RolloutManager {
    /// Creates a manager for an agent. `is_native` says that rollstream runs the agent's turns itself, not NeMo Gym.
    /// The default rollout timeout applies.
    pub fn new(
        agent_name: &str,
        agent: Arc<dyn Agent>,
        is_native: bool,
        options: RolloutOptions,
    ) -> Self {
        let settings = Settings::default();
        let limits = AgentLimits::of(agent_name, &settings);
        let mut agents = Agents::default();
        agents.insert(agent_name, Member { agent, limits });
        Self::of(agent_name, agents, is_native, &settings, options)
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
        Self {
            agents,
            agent_name: agent_name.to_owned(),
            is_native,
            options,
            memory: MemoryPlan::of(settings),
            registry: Arc::default(),
            progress: Arc::default(),
            stats: RolloutStats::default(),
        }
    }

    /// Creates a manager for an agent of these settings. Their `rollout_timeout` and the agent's limits of calls in
    /// flight and of rates apply; budgets are in `options`.
    ///
    /// # Errors
    /// The agent can't be set up.
    pub async fn connect(
        settings: &Settings,
        agent_name: &str,
        options: RolloutOptions,
    ) -> Result<Self, Error> {
        let agents = Agents::connect(&[agent_name.to_owned()], settings).await?;
        let own = settings.agents.get(agent_name);
        let is_native = own.is_some_and(|own| own.kind == Some(AgentKind::MultiTurn));
        Ok(Self::of(agent_name, agents, is_native, settings, options))
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
        let count = self.options.num_generations;
        let mut answers: Vec<Option<(u32, String)>> = vec![None; count];
        let needs_all = self.options.group == GroupFailure::All;
        let first_attempt = number * self.options.max_row_attempts.max(1);
        let mut last = None;
        let mut outcomes = self.run(prompt, first_attempt)?;
        while let Some(batch) = outcomes.next().await {
            for ended in batch.and_then(|batch| Ended::rows(&batch)).map_err(data)? {
                self.stats
                    .rows_redispatched(u64::from(ended.attempt > first_attempt));
                let Some(answer) = ended.result else {
                    let failure = ended.failure();
                    if needs_all && (ended.terminal || failure.class.leaves_pending()) {
                        return Err(failure);
                    }
                    last = Some(failure);
                    continue;
                };
                let sent_as = usize::try_from(ended.rollout_index).unwrap_or(usize::MAX);
                let row = if self.is_native {
                    sent_as
                } else {
                    let is_answered = |row: usize| answers.get(row).is_some_and(Option::is_some);
                    let answer: Value = serde_json::from_str(&answer).map_err(data)?;
                    row_index(&answer, sent_as, is_answered, count).map_err(data)?
                };
                if let Some(place) = answers.get_mut(row) {
                    *place = Some((ended.attempt, answer));
                }
            }
        }
        let is_short = answers.iter().any(Option::is_none);
        if let Some(failure) = last.filter(|_| is_short)
            && (needs_all || answers.iter().all(Option::is_none))
        {
            return Err(failure);
        }
        self.together(prompt, &answers)
    }

    /// Starts the run operator over the rollouts of a prompt, and returns its outcomes.
    fn run(
        &self,
        prompt: &TrainingPrompt,
        attempt: u32,
    ) -> Result<SendableRecordBatchStream, Failure> {
        let prior = Prior {
            attempt,
            ..Prior::default()
        };
        let rollouts = 0..self.options.num_generations as i64;
        let calls = self.options.num_generations * self.options.max_groups.max(1);
        let run = RunContext {
            agents: self.agents.clone(),
            pending: BTreeMap::new(),
            prior: rollouts.map(|row| ((prompt.idx, row), prior)).collect(),
            seed: None,
            memory: self.memory,
            most_calls: calls,
            lookahead: self.options.num_generations,
            backoff: self.options.backoff,
            // The budgets of the prompts decide how long a manager waits for an agent.
            agent_patience: None,
            failure_limits: FailureLimits::default(),
            dispatch_budget: None,
            dispatches: None,
            registry: Arc::clone(&self.registry),
            progress: Arc::clone(&self.progress),
            shutdown: Shutdown::default(),
        };
        let rows = self.rows(prompt)?;
        let schema = rows.schema();
        let input = MemorySourceConfig::try_new_exec(&[vec![rows]], schema, None).map_err(data)?;
        let config = SessionConfig::new().with_extension(Arc::new(run));
        let context = TaskContext::default().with_session_config(config);
        let step = RunStep { concurrency: calls };
        execute_stream(Arc::new(RunExec::new(step, input)), Arc::new(context)).map_err(data)
    }

    /// Returns the rollouts of a prompt as the run operator takes them.
    fn rows(&self, prompt: &TrainingPrompt) -> Result<RecordBatch, Failure> {
        let (count, sampling) = (self.options.num_generations, &self.options.sampling);
        let request = |row| {
            if self.is_native {
                return Ok(prompt.native_row(sampling));
            }
            prompt.gym_row(&self.agent_name, row, sampling)
        };
        let requests = (0..count).map(|row| Ok(request(row)?.to_string()));
        let requests: Vec<String> = requests
            .collect::<Result<_, String>>()
            .map_err(|why| data(format!("prompt {}: {why}", prompt.idx)))?;
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(vec![prompt.idx; count])),
            Arc::new(Int64Array::from_iter_values(0..count as i64)),
            Arc::new(StringViewArray::from(vec![self.agent_name.as_str(); count])),
            Arc::new(StringViewArray::from_iter_values(requests)),
        ];
        RecordBatch::try_new(schema::pending(), columns).map_err(data)
    }

    fn together(
        &self,
        prompt: &TrainingPrompt,
        answers: &[Option<(u32, String)>],
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
                let (attempt, text) = answer.as_ref()?;
                Some(GroupAnswer {
                    key: RolloutKey::new(prompt.idx, rollout_index, *attempt),
                    text,
                })
            })
            .collect();
        PromptGroup::new(head, &answers).map_err(data)
    }
}

row! {
    /// An attempt at a rollout that has ended.
    struct Ended {
        rollout_index: i64,
        attempt: u32,
        outcome: String,
        http_status: Option<i64>,
        error: String,
        terminal: bool,
        result: Option<String>,
    }
}

impl Ended {
    fn failure(&self) -> Failure {
        let class = FailureClass::of_name(&self.outcome).unwrap_or(FailureClass::Data);
        Failure {
            http_status: self.http_status.and_then(|status| status.try_into().ok()),
            ..Failure::new(class, &*self.error)
        }
    }
}

fn data(why: impl ToString) -> Failure {
    Failure::new(FailureClass::Data, why.to_string())
}
