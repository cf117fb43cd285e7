//! What people and programs see: [`ProgressDisplay`] while a sweep runs, [`report`] when it is done,
//! [`RowSink`] for the rows of a query, in one of the [`Format`]s, [`StatusView`] for how a run is doing,
//! [`comparison`] for runs against each other.

mod comparison;
mod csv;
mod format;
mod json;
mod parquet;
mod progress_bar;
mod report;
mod status;
mod table;
mod text;

pub use comparison::{comparison, comparison_markdown};
pub use format::{Format, RowSink, ShowError, open_sink, open_table};
pub use progress_bar::{ProgressDisplay, ProgressMode};
pub use report::{event, metrics, plan, profile, report};
pub use status::{StatusForm, StatusView};
pub use table::RowLimit;
