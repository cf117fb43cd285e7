//! The tables of runs inside DataFusion: [`register_store`] makes a run's store readable, [`RunTables`] gives its tables as
//! views, also while they are being written. [`register_wide`] registers those of several runs at once, each a
//! [`NamedRun`], with a column for every metric. Every query to a run begins here; it fails if the run's
//! store, a part or a file of its journal can't be read. `row!` declares the rows of a query as a struct, `Rows` reads them.
//! A [`Spool`] keeps tables in temporary files.

mod context;
mod metric_names;
mod plain_words;
pub(crate) mod rows;
mod spool;
mod tables;
mod wide;

pub(crate) use context::QueryError;
pub use context::{config, gathering, measuring, register_store, spilling};
pub use metric_names::MetricNames;
pub(crate) use plain_words::{missing_table, plain};
pub(crate) use rows::{Column, Rows, row};
pub(crate) use spool::AHEAD;
pub use spool::{Spool, SpoolFile};
pub use tables::{JournalRows, RunTables, any_part, dispatches, part};
pub(crate) use tables::{no_rows, unless_replaced};
pub use wide::{NamedRun, register_union, register_wide};
