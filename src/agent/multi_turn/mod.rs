//! The loop between a model and an environment that NeMo RL's rollouts are made of: generate, step,
//! observe, until the episode ends. [`MultiTurnAgent`] runs it for the samples of a sweep, each at
//! its own pace or all of a batch together; [`Rules`](crate::config::Rules) says how the forms of NeMo RL
//! differ.

mod agent;
mod answer;
mod content;
mod environments;
mod episode;
#[cfg(test)]
mod exactness;
mod gathering;
mod limits;
mod lockstep;
mod per_sample;
mod prompt;
mod rules;
mod sample;
mod siblings;
#[cfg(test)]
mod tests;

pub use agent::{MultiTurnAgent, MultiTurnOptions};
pub use environments::{Environments, UnknownTask};
pub use limits::Limits;
pub use prompt::{Prompt, PromptError};
