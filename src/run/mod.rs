//! The operator that calls the agents: [`RunExec`] takes rows owed and gives rows answered, with
//! many calls in flight across the borders of batches; [`RunNode`] is its place in a logical plan;
//! [`RunContext`] is what it needs of the session.
//!
//! ```text
//!   owed rows ──► queue, a lane per agent ──► calls in flight ──► batches of outcomes
//!                 (bounded look-ahead)        (a task each)       (as they complete)
//! ```

mod call;
mod context;
mod driver;
mod exec;
mod node;
mod queue;

pub use context::{RunContext, Shutdown};
pub use exec::RunExec;
pub use node::{RunNode, RunPlanner};
