//! The one place that joins the steps: [`Sweep`] reads, expands, runs, lands and measures;
//! [`SweepPlan`] says what it would do, [`SweepReport`] what it did.

mod artifacts;
mod identity;
mod inputs;
mod report;
mod spool;
mod sweep;

pub use report::{AgentMetric, SweepPlan, SweepReport};
pub use sweep::Sweep;
