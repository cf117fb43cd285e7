//! Stores runs. [`RunStore`] is the place (a directory or an object-store prefix), and [`RunRecord`] its `run.json`.
//! [`RunLock`] keeps two processes from writing the same rollouts. Each [`Writer`] has an epoch, a growing number.
//!
//! Answers go through [`segment`]: rows are written ahead into a segment of the journal, and a segment is committed to a
//! [`ParquetSink`], once. [`DispatchLogs`] note what is sent, a [`Checkpointer`] keeps a copy of the journal off the
//! machine, and [`PartExchange`] parts replace small ones. `run`, `land`, `sweep` and `session` use it.

mod address;
pub mod checkpoint;
mod dispatch_log;
mod dispatch_record;
mod error;
mod journal;
mod local;
mod lock;
mod mount;
mod objects;
mod part;
mod patient;
mod place;
mod private;
mod record;
pub mod segment;
mod upload;
mod writer;

pub(crate) use address::Address;
pub use checkpoint::{CheckpointedFile, Checkpointer};
pub use dispatch_log::{DispatchLog, DispatchLogs};
pub use dispatch_record::{CallRecord, DispatchRecord, LoggedCalls};
pub use error::StoreError;
pub use journal::JournalFile;
pub(crate) use journal::in_directory;
#[cfg(feature = "cluster")]
pub(crate) use lock::Process;
pub use lock::{LockHolder, LockOptions, LockScope, RunLock};
pub use objects::CheckedParts;
pub(crate) use objects::{CLUSTER, EXECUTORS};
pub(crate) use part::plain_parquet;
pub use part::{Document, Part, PartExchange, PartWriter, part_name};
pub use place::RunStore;
pub(crate) use private::Scratch;
pub use private::state_directory;
pub use record::{EnvironmentServer, GYM, InputRecord, RUN_JSON, RunCounts, RunRecord, RunState};
pub use segment::{OpenSegment, ParquetSink, SegmentName, SegmentWriter};
pub use writer::Writer;
