//! The rollouts of one task as a group: [`group_metrics`] is what NeMo RL says of them.

mod facts;
mod legacy;
mod metrics;

pub use facts::SampleFacts;
pub use legacy::{LegacyForm, batch_metrics_legacy};
pub use metrics::group_metrics;
