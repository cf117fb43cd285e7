//! From lines of JSON to tasks.
//!
//! [`TaskReader`] takes any number of inputs, one after another, and gives one [`TaskRow`] per line: the request as
//! it will be sent, who it goes to, how often, and which task it is. [`ReadOptions`] say what is done to a line on
//! the way: an agent's name, a [`Prompt`], [`Overrides`], a number of repeats. Nothing is kept of a line but its
//! digest, so the size of an input does not matter.
//!
//! Lines that cannot become tasks are collected in [`InputErrors`], all of them and by their place, before anything
//! is sent. [`ReadError`] is for inputs that end in the middle. [`open`] and [`decoded`] give the text of a file,
//! packed or not, and [`expand`] the files that a pattern stands for.

mod batch;
mod channel;
mod digest;
mod errors;
mod glob;
mod identity;
mod lines;
mod overrides;
mod prompt;
mod routes;
mod row;
mod source;
mod task;
mod tasks;

pub use batch::TaskBatchBuilder;
pub use channel::{Batches, OpenSource, ReadTasksError, SourceDigest, batches, read_tasks};
pub use errors::{Finding, InputErrors, Kind};
pub use glob::expand;
pub use lines::LineError;
pub use overrides::Overrides;
pub use prompt::{Prompt, PromptError};
pub use source::{SourceError, decoded, open};
pub use task::{AgentRows, ReadError, ReadOptions, ReadSummary, TaskRow};
pub use tasks::TaskReader;
