//! All rollouts of a prompt as one record: [`PromptGroup`], what it says of them all
//! ([`group_metrics`]), and groups as a table ([`groups`]). [`RolloutManager`] rolls prompts out in groups, for a
//! trainer.

mod facts;
mod gym;
mod legacy;
mod manager;
mod metrics;
mod record;
mod request;
mod stats;
mod table;

pub use facts::SampleFacts;
pub use legacy::{LegacyForm, batch_metrics_legacy};
pub use manager::{RolloutError, RolloutManager, RolloutOptions, Sampling};
pub use metrics::group_metrics;
pub use record::{Completion, GroupAnswer, GroupAnswerError, GroupPrompt, PromptGroup};
pub use request::TrainingPrompt;
pub use stats::RolloutCounts;
pub use table::{GROUPS, batch, groups};
