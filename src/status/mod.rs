//! How a run is doing, live, dead or finished, as its own tables tell it: [`RunStatus`]. Reads, and
//! changes nothing; nothing here is a step of the flow.

mod figures;
mod observe;
mod queries;
mod rate;
mod run_status;
#[cfg(test)]
mod tests;

pub use figures::{Figures, MeanTimes, OutcomeCount};
pub use observe::{LockStatus, ObservedState};
pub use rate::RateWindow;
pub use run_status::{AgentStatus, ErrorCount, RunStatus};
