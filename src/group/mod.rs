//! All rollouts of a prompt as one record: [`PromptGroup`], its metrics under NeMo RL's names ([`group_metrics`]), and
//! groups as a table ([`groups`]). A sweep writes that table. [`RolloutManager`] rolls prompts out in groups from the
//! library, for a trainer; its retries follow NeMo RL, by the rules of [`retry`](crate::retry). [`run_examples`] sends rows
//! without making groups of them.

mod dispatch;
mod examples;
mod experts;
mod figures;
mod gym;
mod manager;
mod metrics;
mod options;
mod prompt;
mod record;
mod stats;
mod table;

pub use examples::{ExampleError, run_examples};
pub use gym::GymOptions;
pub use manager::{RolloutBatch, RolloutManager};
pub use metrics::{LegacyForm, SampleFacts, batch_metrics, batch_metrics_legacy, group_metrics};
pub use options::{RolloutError, RolloutOptions, RolloutOptionsError};
pub use prompt::{Sampling, TrainingPrompt};
pub use record::{Completion, GroupAnswer, GroupAnswerError, GroupPrompt, PromptGroup};
pub use stats::RolloutCounts;
pub use table::{GROUPS, batch, groups};
