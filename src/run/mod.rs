//! The operator that calls the agents: [`RunExec`] turns pending rows into outcomes, with many calls in flight across
//! batches. [`RunStep`] is its node in a logical plan, [`RunContext`] is its input from the session. `sweep` plans it.
//!
//! ```text
//!   pending rows ──► queue, by agent ──► calls in flight ──► batches of outcomes     (each partition)
//!                    (bounded look-ahead)  (a task each)       (as they complete)
//!                        ▲    │ permits          │
//!                        │    └── registry ◄─────┤ how each call ended                (all partitions)
//!                        └── retry ◄─────────────┘
//! ```
//!
//! The registry has a limiter for each agent. It grants a call if the agent's limit of calls in flight, its rate limits,
//! its last `Retry-After` and its circuit breaker allow it. A row that waits holds no permit. The rules for a failed
//! attempt are in [`retry`](crate::retry).

mod adaptive_concurrency;
mod agent_queue;
mod circuit_breaker;
mod context;
mod driver;
mod exec;
mod first_answers;
mod limiter;
mod queue;
mod rate_limit;
mod registry;
mod row;
mod slow_calls;
mod stop;
#[cfg(test)]
mod tests;

pub use context::RunContext;
pub use exec::{RunExec, RunStep};
pub use registry::Registry;
pub use stop::{DispatchBudget, FailureLimits, Shutdown, StopReason};
