//! The tables of runs inside DataFusion: [`register_store`] makes a run's store readable,
//! [`RunTables`] gives its tables as views, also while they are being written. [`register_wide`]
//! gives people those of several runs at once, each a [`NamedRun`], with a column for every metric.

mod context;
mod dictionary;
mod memory;
mod metric_names;
mod named_run;
mod tables;
mod union;
mod wide;

pub(crate) use context::QueryError;
pub use context::{config, gathering, measuring, register_store, spilling};
pub use metric_names::MetricNames;
pub use named_run::NamedRun;
pub use tables::{JournalRows, RunTables, any_part, dispatches, part};
pub use union::register_union;
pub use wide::register_wide;
