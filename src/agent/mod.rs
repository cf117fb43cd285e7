//! Those who are asked: [`Agent`] is the seam, [`NemoGymAgent`] its implementation over HTTP,
//! [`HeadServer`] tells where NeMo Gym's agents are, [`Agents`] holds all agents of a sweep by
//! name, [`MetricServers`] asks them for their own metrics.

mod contract;
mod episode;
mod error;
mod head_server;
mod judge;
mod metric_servers;
pub mod multi_turn;
mod native;
mod nemo_gym;
mod registry;
mod tool_calling;

pub use contract::{Agent, Answer, Reply, RolloutRequest};
pub use error::AgentError;
pub use head_server::HeadServer;
pub use metric_servers::{MetricServerOptions, MetricServers, RecordedAgents};
pub use nemo_gym::NemoGymAgent;
pub use registry::{AgentLimits, Agents, Member};
pub use tool_calling::{ToolCallingAgent, ToolCallingOptions};
