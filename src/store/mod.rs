//! A run where it is kept. [`RunStore`] is the place (a directory or an object-store prefix), and [`RunRecord`] its
//! `run.json`. [`RunLock`] keeps two processes from writing the same rollouts, and makes each a [`Writer`] with an epoch.
//!
//! What is answered goes through [`segment`]: rows are written ahead into a segment of the journal, and a segment is
//! committed to a [`TableSink`], once. [`DispatchLogs`] are what was sent, a [`Checkpointer`] keeps the journal from being
//! lost with its machine, and [`Compacted`] parts take the place of small ones.

mod address;
pub mod checkpoint;
mod compacted;
mod connect;
mod deadline;
mod dispatch_log;
mod dispatch_logs;
mod dispatch_record;
mod document;
mod error;
mod held_file;
mod local;
mod lock;
mod mount;
mod multipart;
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
pub use compacted::Compacted;
pub use dispatch_log::{DispatchLog, DispatchLogFile, LoggedCalls};
pub use dispatch_logs::{DispatchLogs, PartitionLog};
pub use dispatch_record::{CallRecord, DispatchRecord};
pub use document::Document;
pub use error::StoreError;
pub use lock::{LockHolder, LockOptions, LockScope, RunLock};
pub use part::{Part, PartWriter, part_name};
pub use place::{CheckedParts, RunStore};
pub(crate) use private::Scratch;
pub use private::state_directory;
pub use record::{EnvironmentServer, GYM, InputRecord, RunCounts, RunRecord, RunState};
pub use segment::{
    OpenSegment, ParquetSink, Segment, SegmentName, SegmentWriter, TableSink, Unsynced,
};
pub use writer::{Permit, Writer};
