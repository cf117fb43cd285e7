//! The agent that calls tools: a model asks for calls, a resources server answers them and scores the
//! whole, until the model has said what it had to say. [`ToolCallingAgent`] does what NeMo Gym's
//! `simple_agent` does, and for Gymnasium-style servers what its `gymnasium_agent` does.

mod agent;
mod arguments;
mod episode;
mod full_form;
mod gymnasium;
mod items;
#[cfg(test)]
mod tests;
mod tools;
mod usage;

pub use agent::{ToolCallingAgent, ToolCallingOptions};
