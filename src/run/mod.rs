//! The operator that calls the agents: [`RunExec`] takes pending rows and gives rows answered, with
//! many calls in flight across the borders of batches; [`RunStep`] is its place in a logical plan;
//! [`RunContext`] is what it needs of the session.
//!
//! ```text
//!   pending rows ──► queue, by agent ──► calls in flight ──► batches of outcomes     (each partition)
//!                    (bounded look-ahead)  (a task each)       (as they complete)
//!                        ▲    │ permits          │
//!                        │    └── registry ◄─────┤ what their end says of an agent    (all partitions)
//!                        └── another attempt ◄───┘
//! ```
//!
//! The registry has a limiter for each agent. It grants a call when the agent's limit of calls in
//! flight, its rates, what it asked for with `Retry-After`, and its circuit breaker allow it. A row
//! that waits holds no place.

mod adaptive;
mod breaker;
mod bucket;
mod call;
mod context;
mod dispatch_budget;
mod driver;
mod exec;
mod latencies;
mod lateness;
mod limiter;
mod pending;
mod queue;
mod registry;
mod waiting;

pub use context::{FailureLimits, RunContext, Shutdown, StopReason};
pub use dispatch_budget::DispatchBudget;
pub use exec::{RunExec, RunStep};
pub use registry::Registry;
