//! The operator that calls the agents: [`RunExec`] takes rows owed and gives rows answered, with
//! many calls in flight across the borders of batches; [`RunNode`] is its place in a logical plan;
//! [`RunContext`] is what it needs of the session.
//!
//! ```text
//!   owed rows ──► queue, a lane per agent ──► calls in flight ──► batches of outcomes
//!                 (bounded look-ahead)        (a task each)       (as they complete)
//!                        ▲                          │
//!                        └── another attempt ◄──────┘
//! ```
//!
//! A lane lets a row pass when its agent's limit of calls in flight, its rates, what the agent asked
//! for with `Retry-After`, and the circuit breaker allow it. A row that waits holds no place.

mod adaptive;
mod backoff;
mod breaker;
mod bucket;
mod call;
mod context;
mod driver;
mod exec;
mod lane;
mod latencies;
mod lateness;
mod node;
mod owed;
mod queue;
mod retry;

pub use context::{FailureLimits, RunContext, Shutdown, StopReason};
pub use exec::RunExec;
pub use node::{RunNode, RunPlanner};
