//! The life of a segment: open (a writer appends rows to its file), sealed (nothing is added any more), committed (its
//! rows are in the tables, and the file goes).
//!
//! A rollout counts once its row is in a segment. [`SegmentName`] says who wrote a segment; [`SegmentWriter`]
//! and [`OpenSegment`] are its file; a [`ParquetSink`] commits it. The [`Ledger`] decides which rows
//! count where several writers may have written the same rollouts: landing, recovery, checkpoints and readers ask it.

mod file;
mod frame;
mod ledger;
mod sink;
#[cfg(test)]
mod tests;

pub use super::journal::{NotASegment, SegmentName};
pub(super) use file::SEGMENT;
pub use file::{Batches, OpenSegment, SegmentWriter};
pub use frame::Damage;
pub use ledger::{Committed, Decisions, Key, Ledger, Row};
pub use sink::{ParquetSink, TABLES, Transaction};
