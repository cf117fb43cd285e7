//! All rollouts of a prompt as one record: [`PromptGroup`], its metrics under NeMo RL's names ([`group_metrics`]), and
//! groups as a table ([`groups`]). A sweep writes that table. [`RolloutManager`] rolls prompts out in groups from the
//! library, for a trainer; its retries follow NeMo RL, by the rules of [`retry`](crate::retry).

mod counts;
mod manager;
mod metrics;
mod prompt;
mod record;
mod table;

pub use counts::RolloutCounts;
pub use manager::{RolloutError, RolloutManager, RolloutOptions};
pub use metrics::{LegacyForm, SampleFacts, batch_metrics_legacy, group_metrics};
pub use prompt::{Sampling, TrainingPrompt};
pub use record::{Completion, GroupAnswer, GroupAnswerError, GroupPrompt, PromptGroup};
pub use table::{GROUPS, batch, groups};
