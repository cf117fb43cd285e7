//! From the tables of a run to its numbers.
//!
//! [`MetricQueries`] are the SQL files that define every metric, [`run_families`] runs them over the
//! tables `tasks`, `rollouts` and `attempts` of a session and the views that [`register_views`] makes of
//! them, one [`MetricTable`] per file. A [`Spool`] keeps what several of them read.
//! [`AggregateMetrics`] and [`RewardProfile`] write the statistics tables in the JSON shapes that
//! NeMo Gym's users know, and compute no number of their own. [`compare`] holds runs against each other. [`MeasureError`] is what can go wrong.

mod agent_metrics;
mod aggregate_metrics;
mod aggregation;
mod artifacts;
pub mod compare;
mod completion;
mod custom_metrics;
mod error;
mod families;
pub mod functions;
mod groups;
mod header;
mod json_object;
mod live;
mod measurement;
mod metric_look;
mod metric_tables;
mod parameter;
mod pass_majority;
mod perf;
mod profile;
mod queries;
mod repeats;
mod report;
mod reward_profile;
mod rows;
mod spool;
mod statistics;
mod subsets;
mod task_labels;
#[cfg(test)]
mod tests;
mod views;
pub(crate) mod zeros;

pub use agent_metrics::write_verify_responses;
pub use aggregate_metrics::{AGGREGATE, AggregateMetrics};
pub use aggregation::{Aggregation, AggregationSource};
pub(crate) use artifacts::earlier;
pub use completion::CompletionSummary;
pub use custom_metrics::{CustomMetrics, KeyMetrics};
pub use error::MeasureError;
pub use families::{
    AGENT_STATISTICS, MetricTable, TASK_STATISTICS, plan, run_families, without_reserved,
};
pub(crate) use live::Live;
pub use live::LiveMetrics;
pub use measurement::{Measurement, Missing, Price};
pub(crate) use measurement::{Source, measure};
pub use metric_tables::MetricTables;
pub use parameter::{Parameter, ParameterValue};
pub use pass_majority::{PassMajority, PassMajorityOptions};
pub use profile::{Profile, ProfileTarget};
pub use queries::{MetricQueries, MetricQuery};
pub use repeats::{OwnRepeats, is_same};
pub(crate) use report::Measured;
pub use report::{AgentCoverage, AgentMetric, MetricsReport, PassAt, ProfileReport};
pub use reward_profile::RewardProfile;
pub(crate) use rows::{Rows, binaries, optional_texts, truths};
pub use rows::{counts, floats, texts};
pub use spool::{Spool, SpoolFile};
pub use task_labels::TaskLabels;
pub use views::{
    COVERAGE, PRICES, SCORES, prices, register_views, spool_scores, spool_views, view,
};
