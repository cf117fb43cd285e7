use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::registry::Registry;
use super::stop::{DispatchBudget, FailureLimits, Shutdown};
use crate::agent::Agents;
use crate::config::{MemoryPlan, SeedField};
use crate::progress::Progress;
use crate::retry::{Backoff, Prior};
use crate::store::DispatchLogs;

/// What [`RunExec`](super::RunExec) needs that is not in the plan. It is an extension of the session's configuration.
#[derive(Debug)]
pub struct RunContext {
    /// The agents.
    pub agents: Agents,
    /// Pending rollouts of each agent. If an agent is missing, the number is unknown.
    pub pending: BTreeMap<String, u64>,
    /// What earlier processes did for rollouts that are still pending, by task and rollout.
    pub prior: HashMap<(i64, i64), Prior>,
    /// Where the rollout index goes as a seed, if anywhere.
    pub seed: Option<SeedField>,
    /// How memory is divided.
    pub memory: MemoryPlan,
    /// The most calls in flight, whatever the plan says: the system allows no more connections.
    pub most_calls: usize,
    /// Rows that each partition may queue beyond those in flight.
    pub lookahead: usize,
    /// The wait before another attempt at a rollout.
    pub backoff: Backoff,
    /// How long to wait for an agent that answers nothing.
    pub agent_patience: Duration,
    /// When to stop because too much fails.
    pub failure_limits: FailureLimits,
    /// The time within which rollouts are sent, if it is bounded.
    pub dispatch_budget: Option<DispatchBudget>,
    /// Logs that note each dispatch before it is sent.
    pub dispatches: Option<Arc<DispatchLogs>>,
    /// What the partitions share.
    pub registry: Registry,
    /// The sweep's counts.
    pub progress: Arc<Progress>,
    /// How to stop early.
    pub shutdown: Shutdown,
}
