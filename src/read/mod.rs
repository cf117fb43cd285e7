//! Turns lines of JSON into tasks.
//!
//! [`read_tasks`] reads inputs one after another into batches for the table `tasks`: [`TaskReader`] makes one [`TaskRow`]
//! per line, with the request as it will be sent, who gets it, how often, and which task it is. [`ReadOptions`] say
//! what changes on the way: an agent's name, a [`Prompt`], [`Overrides`], a number of repeats. Only digests of lines are
//! kept, so the size of an input does not matter.
//!
//! Lines that cannot become tasks are collected in [`InputErrors`], all of them with their places, before anything is
//! sent. [`ReadError`] is for inputs that cannot be read to the end. [`open()`] and [`decoded`] give the text of a file,
//! packed or not. The sweep reads its inputs with this module, and the import builds its tasks with it.

mod errors;
mod identity;
mod lines;
mod prompt;
mod routes;
mod row;
mod source;
mod task;
mod tasks;

pub use errors::{Finding, InputErrors, Kind};
pub use identity::task_digest;
pub use lines::LineError;
pub use prompt::{Prompt, PromptError};
pub use row::Overrides;
pub use source::{
    Batches, OpenSource, ReadTasksError, SourceError, batches, decoded, open, read_tasks,
};
pub use task::{AgentRows, ReadError, ReadOptions, ReadSummary, TaskBatchBuilder, TaskRow};
pub use tasks::TaskReader;
