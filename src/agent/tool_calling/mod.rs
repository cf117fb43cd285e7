//! The agent that calls tools: a model asks for calls, a resources server answers them, and scores the rollout when the
//! model is done.
//!
//! [`ToolCallingAgent`] does what NeMo Gym's `simple_agent` does, and for Gymnasium-style servers what its
//! `gymnasium_agent` does. The registry of agents sets it up from the configuration.

mod arguments;
mod episode;
mod gymnasium;
mod items;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;

use self::episode::ToolRollout;
use super::{Agent, Reply, RolloutRequest};
use crate::call::Target;
use crate::config::Resources;
use crate::model::Responder;
use crate::retry::{Failure, FailureClass};

/// Runs rollouts between a model and a resources server.
#[derive(Debug)]
pub struct ToolCallingAgent {
    pub(super) model: Arc<dyn Responder>,
    pub(super) resources: Target,
    pub(super) options: ToolCallingOptions,
    address: String,
}

/// The settings of a [`ToolCallingAgent`].
#[derive(Debug, Clone, Default)]
pub struct ToolCallingOptions {
    /// The protocol of the resources server.
    pub protocol: Resources,
    /// The most calls of the model. Default: unlimited, but 10 for servers in
    /// the style of Gymnasium.
    pub max_steps: Option<u32>,
    /// The longest time of a call to the resources server.
    pub step_timeout: Option<Duration>,
}

impl ToolCallingAgent {
    /// Creates an agent between a model and a resources server.
    pub fn new(model: Arc<dyn Responder>, resources: Target, options: ToolCallingOptions) -> Self {
        let address = format!("{} with {}", model.address(), resources.address());
        Self {
            model,
            resources,
            options,
            address,
        }
    }
}

#[async_trait]
impl Agent for ToolCallingAgent {
    async fn run(&self, request: RolloutRequest) -> Reply {
        let began = Instant::now();
        let result = match std::str::from_utf8(&request.body) {
            Ok(row) => match ToolRollout::new(self, row, &request.calls) {
                Ok(episode) => match self.options.protocol {
                    Resources::Tools => episode.call_tools().await,
                    Resources::Gymnasium => episode.play().await,
                },
                Err(failure) => Err(failure),
            },
            Err(source) => Err(Failure::new(
                FailureClass::Data,
                format!("the row is not UTF-8: {source}"),
            )),
        };
        Reply {
            elapsed: began.elapsed(),
            ..Reply::new(result)
        }
    }

    fn address(&self) -> &str {
        &self.address
    }
}
