use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;

use super::registry::Registry;
use super::stop::{DispatchBudget, FailureLimits, Shutdown};
use crate::agent::Agents;
use crate::config::{MemoryPlan, SeedField};
use crate::progress::Progress;
use crate::retry::{Backoff, Prior};
use crate::store::DispatchLogs;

/// The inputs of [`RunExec`](super::RunExec) that are not in the plan, an extension of the session's configuration.
#[derive(Debug)]
pub struct RunContext {
    /// The agents.
    pub agents: Agents,
    /// Pending rollouts of each agent. If an agent is missing, the number is unknown.
    pub pending: BTreeMap<String, u64>,
    /// The earlier attempts at rollouts that are still pending, by task and rollout.
    pub prior: HashMap<(i64, i64), Prior>,
    /// The field that carries the rollout index as a seed, if any.
    pub seed: Option<SeedField>,
    /// Whether requests are sent without the rollout index, and answers come back whatever their flags say. The attempt
    /// index is then all that a retry adds.
    pub as_given: bool,
    /// The division of memory.
    pub memory: MemoryPlan,
    /// The most calls in flight, whatever the plan says, because the system limits open connections.
    pub most_calls: usize,
    /// Rows that each partition may queue beyond those in flight.
    pub lookahead: usize,
    /// The wait before another attempt at a rollout.
    pub backoff: Backoff,
    /// The longest wait for an agent that does not answer. Without one, calls go on whatever becomes of them.
    pub agent_patience: Option<Duration>,
    /// The limits of failures beyond which the run stops.
    pub failure_limits: FailureLimits,
    /// The time within which rollouts are sent, if it is bounded.
    pub dispatch_budget: Option<Arc<DispatchBudget>>,
    /// Logs that note each dispatch before it is sent.
    pub dispatches: Option<Arc<DispatchLogs>>,
    /// The state that all partitions share, also those of other plans that send to the same agents.
    pub registry: Arc<Registry>,
    /// The sweep's counts.
    pub progress: Arc<Progress>,
    /// The handle that stops the run early.
    pub shutdown: Shutdown,
    /// Empty and closed when no partition that has begun has rows left to send.
    pub sending: TaskTracker,
}
