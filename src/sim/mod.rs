//! Simulated agents, a model and environments: real HTTP servers for demonstrations, tests and
//! benchmarks.
//!
//! [`Sim`] serves a NeMo Gym head server and the agents of a [`SimConfig`], each on a port of its
//! own. Beside them it serves what agents are made of: a model (`sim_model`), a resources server
//! (`sim_tools`), one in the manner of Gymnasium (`sim_gymnasium`) and an environment
//! (`sim_environment`). What the model says is a function of the conversation and a seed. What an agent does to a request is planned by its [`Profile`] from the seed and from task,
//! rollout and attempt alone, so that a caller can know it beforehand: [`oracle`], [`Planned`].
//! [`Counts`] tells what became of all requests and [`RequestRecord`] of each, [`FaultKind`] names
//! what can go wrong, and [`AgentChange`] changes an agent while it serves.

mod agent;
mod agent_list;
mod aggregate;
mod answer;
mod arithmetic;
mod call;
mod capacity;
mod config;
mod connection;
mod control;
mod counters;
mod draws;
mod environments;
mod error;
mod fault;
mod filler;
mod head;
mod hostile;
mod http;
mod latency;
mod listed;
mod model;
mod oracle;
mod port;
mod profile;
mod quantity;
mod refusal;
mod requests;
mod row;
mod server;
mod service;
mod spoil;
mod station;
#[cfg(test)]
mod tests;

pub use config::{AgentConfig, MAX_BODY_SIZE, OverCapacity, SimConfig};
pub use control::AgentChange;
pub use counters::Counts;
pub use draws::Draws;
pub use error::SimError;
pub use fault::{FaultAt, FaultError, FaultKind, FaultRate, FaultRates};
pub use latency::{Latency, LatencyError, MAX_LATENCY};
pub use oracle::{Key, Planned, ROW_DIFFICULTY_SHIFT, RowDifficulty, oracle};
pub use profile::Profile;
pub use quantity::{QuantityError, format_duration, parse_duration, parse_size};
pub use requests::{MAX_REQUESTS, RequestEnd, RequestRecord};
pub use server::Sim;
