//! All rollouts of a prompt as one record: [`PromptGroup`], what it says of them all
//! ([`group_metrics`]), and groups as a table ([`groups`]).

mod facts;
mod gym;
mod legacy;
mod metrics;
mod record;
mod table;

pub use facts::SampleFacts;
pub use legacy::{LegacyForm, batch_metrics_legacy};
pub use metrics::group_metrics;
pub use record::{Completion, GroupAnswer, GroupAnswerError, GroupPrompt, PromptGroup};
pub use table::{GROUPS, batch, groups};
