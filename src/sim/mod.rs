//! A simulation to try rollstream with: real HTTP servers of agents, a model and environments, for demonstrations, tests
//! and benchmarks. Used by the command line, tests and benches only.
//!
//! [`Sim`] serves a NeMo Gym head server and the agents of a [`SimConfig`], each on a port of its own, and the servers
//! of native rollouts: a model (`sim_model`), a resources server with tools (`sim_tools`), a Gymnasium-style server
//! (`sim_gymnasium`) and an environment that is stepped in batches (`sim_environment`).
//!
//! What an agent does to a request is a function of the seed, task, rollout and attempt, so a caller can know it
//! beforehand: [`oracle`], [`Profile::plan`]. [`FaultKind`] lists what can go wrong. [`Counts`] and [`RequestRecord`]
//! report what became of the requests, and [`AgentChange`] changes an agent while it serves.

mod agent;
mod config;
mod draws;
mod environments;
mod fault;
mod latency;
mod model;
mod plan;
mod server;
#[cfg(test)]
mod tests;
mod verifier;

pub use config::{AgentConfig, OverCapacity, SimConfig, SimError};
pub use draws::Draws;
pub(crate) use fault::parse_rate;
pub use fault::{FaultAt, FaultKind, FaultRates};
pub use latency::{Latency, parse_size};
pub use plan::{Key, Planned, Profile, RowDifficulty, oracle};
pub use server::Sim;
pub use server::endpoint::AgentChange;
pub use server::requests::{Counts, MAX_REQUESTS, RequestEnd, RequestRecord};
