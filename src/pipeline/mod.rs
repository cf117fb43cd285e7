//! The one place that joins the steps: [`Sweep`] reads, expands, runs, lands and measures;
//! [`import_collection`] makes a run of what another collector has read and run, [`compare`] holds runs
//! against each other.

mod agent_metrics;
mod aggregation;
mod artifacts;
mod begin;
mod by_task;
mod compaction;
mod comparison;
mod end;
mod extension;
mod groups;
mod identity;
mod imported;
mod inputs;
mod inputs_of_run;
mod invalid_judges;
mod live;
mod longest_first;
mod measured;
mod measurement;
mod metric_look;
mod metric_tables;
mod open_files;
mod profile;
mod recovery;
mod rounds;
mod spool;
mod subsets;
mod supervisor;
mod sweep;
mod tables;
mod task_names;
mod unscored;
mod zeros;

pub use agent_metrics::write_verify_responses;
pub use aggregation::{Aggregation, AggregationSource};
pub use comparison::{CompareRun, compare};
pub use identity::NotResumable;
pub use imported::import_collection;
pub use live::LiveMetrics;
pub use measurement::{Measurement, Missing, Price};
pub use metric_tables::MetricTables;
pub use profile::{Profile, ProfileTarget};
pub use sweep::Sweep;
