//! From the tables of a run to its numbers.
//!
//! [`MetricQueries`] are the SQL files that define every metric, [`run_families`] runs them over the
//! tables `tasks`, `rollouts` and `attempts` of a session and the views that [`register_views`] makes of
//! them, one [`MetricTable`] per file. A [`Spool`] keeps what several of them read.
//! [`AggregateMetrics`] and [`RewardProfile`] write the statistics tables in the JSON shapes that
//! NeMo Gym's users know, and compute no number of their own. [`Compared`] is runs against each other. [`MeasureError`] is what can go wrong.

mod aggregate_metrics;
mod compare;
mod completion;
mod custom_metrics;
mod error;
mod families;
pub mod functions;
mod groups;
mod header;
mod json_object;
mod parameter;
mod pass_majority;
mod perf;
mod queries;
mod repeats;
mod reward_profile;
mod rows;
mod spool;
mod statistics;
mod task_labels;
#[cfg(test)]
mod tests;
mod views;

pub use aggregate_metrics::{AGGREGATE, AggregateMetrics};
pub use compare::{Compared, ComparedPair, MetricOverlap, TaskMeans};
pub use completion::CompletionSummary;
pub use custom_metrics::{CustomMetrics, KeyMetrics};
pub use error::MeasureError;
pub use families::{
    AGENT_STATISTICS, MetricTable, TASK_STATISTICS, plan, run_families, without_reserved,
};
pub use parameter::{Parameter, ParameterValue};
pub use pass_majority::{PassMajority, PassMajorityOptions};
pub use queries::{MetricQueries, MetricQuery};
pub use repeats::{OwnRepeats, is_same};
pub use reward_profile::RewardProfile;
pub(crate) use rows::{Rows, binaries, optional_texts, truths};
pub use rows::{counts, floats, texts};
pub use spool::{Spool, SpoolFile};
pub use task_labels::TaskLabels;
pub use views::{
    COVERAGE, PRICES, SCORES, prices, register_views, spool_scores, spool_views, view,
};
