//! NeMo Gym's servers, as the configuration that its head server hands out describes them.
//!
//! [`Servers`] holds what a collector needs of each: what it is, where it is, and which others it refers to. It tells
//! the agent of a task source, the environment server of an agent, and whether [`Route`]s lead anywhere. It asks nobody:
//! the agents and the reader use it.

mod check;
mod close_match;
mod config;
mod task_source;

pub use check::Route;
pub use config::Servers;
