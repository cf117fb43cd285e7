//! Computes the metrics of a run from its tables.
//!
//! Every metric is a table that a SQL file defines. A `MetricCatalog` computes it over the tables `tasks`, `rollouts`,
//! `attempts` and `calls`, wherever these come from: runs, a run that is being collected, or files of NeMo Gym.
//!
//! | file | what it knows |
//! |---|---|
//! | `queries` | [`MetricQueries`]: the SQL files of `queries/metrics` and of a user's folder |
//! | `families` | [`MetricTable`], and the views that all metrics read |
//! | `catalog`, `tables` | the metrics as tables; [`MetricTables`] puts them beside those of `rollstream sql` |
//! | `source`, `subsets`, `zeros` | the tables that are measured, parts of them, and rollouts that count as zero |
//! | `measurement`, `aggregation`, `report` | [`Measurement`], and what it writes and reports |
//! | `nemo_gym` | `aggregate_metrics.json` and the reward profile, as NeMo Gym writes them |
//! | [`compare`] | comparisons of runs |
//! | [`functions`] | the SQL functions that the queries use |
//!
//! The sweep, the command line and the health check use this module. It imports neither `sweep` nor `show`.

mod aggregation;
mod catalog;
pub mod compare;
mod error;
mod families;
pub mod functions;
mod measurement;
mod nemo_gym;
mod queries;
mod report;
mod source;
mod subsets;
mod tables;
#[cfg(test)]
mod tests;
pub(crate) mod zeros;

pub(crate) use aggregation::Live;
pub use aggregation::{Aggregation, AggregationSource, LiveMetrics};
pub use error::MeasureError;
pub use families::{
    AGENT_STATISTICS, COVERAGE, MetricTable, PRICES, SCORES, TASK_STATISTICS, plan, register_views,
    spool_scores,
};
pub use measurement::{Measurement, Missing, Price};
pub(crate) use measurement::{earlier, measure, metrics_of};
pub use nemo_gym::{
    AggregateMetrics, CompletionSummary, CustomMetrics, KeyMetrics, OwnRepeats, PassMajority,
    PassMajorityOptions, Profile, ProfileTarget, write_verify_responses,
};
pub use queries::{MetricQueries, MetricQuery, Parameter};
pub use report::{AgentCoverage, AgentMetric, MetricsReport, PassAt, ProfileReport};
pub(crate) use source::Source;
pub use tables::MetricTables;

use crate::session::rows;
