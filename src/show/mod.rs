//! What people and programs see: [`ProgressDisplay`] while a sweep runs, [`report()`] when it is done, [`StatusView`] for
//! how a run is doing, [`comparison()`] for runs against each other, [`transcript()`] for a rollout to read, and [`RowSink`] for the rows of a query in one of the
//! [`Format`]s. Whatever prints fails if standard output is gone. Used by the command line.

mod comparison;
mod formats;
mod progress_bar;
mod report;
mod status;
mod text;
mod transcript;

pub use comparison::{comparison, comparison_markdown};
pub(crate) use comparison::{probability, verdict};
pub use formats::{Format, RowLimit, RowSink, ShowError, open_sink};
pub use progress_bar::{Messages, ProgressDisplay, ProgressMode};
pub use report::{event, metrics, plan, profile, report};
pub use status::{Look, StatusForm, StatusView, runs};
pub(crate) use text::{count, duration, number, visible_lines};
pub use text::{cut, quoted, terminal_width, wrapped, wrapped_page};
pub use transcript::{TranscriptStyle, tasks, transcript};
